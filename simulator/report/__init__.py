"""The report of one or many runs: one HTML file that needs no network and no server.

MODEL. A report is drawn from `RunRecord`s alone and knows neither world: simulated and real runs
look the same, so that one can be held against the other. `story` says in sentences what happened;
`columns` packs a run small enough that 200,000 attempts fit into one file; `page` puts the file
together; `assets/` is what the browser runs. Nothing is simulated here.
"""

from simulator.report.page import render_report, write_report

__all__ = ["render_report", "write_report"]
