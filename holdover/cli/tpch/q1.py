"""Query 1: one pass over lineitem, summed in each scan, then over all."""

from __future__ import annotations

from holdover.api import DataSet, Job
from holdover.cli.tpch.data import TpchData
from holdover.cli.tpch.query import Parallelism, Query, scan

SQL = """
select l_returnflag, l_linestatus,
       sum(l_quantity) as sum_qty,
       sum(l_extendedprice) as sum_base_price,
       sum(l_extendedprice * (1 - l_discount)) as sum_disc_price,
       sum(l_extendedprice * (1 - l_discount) * (1 + l_tax)) as sum_charge,
       avg(l_quantity) as avg_qty,
       avg(l_extendedprice) as avg_price,
       avg(l_discount) as avg_disc,
       count(*) as count_order
from lineitem
where l_shipdate <= date '1998-12-01' - interval 90 day
group by l_returnflag, l_linestatus
order by l_returnflag, l_linestatus
"""


def plan(job: Job, data: TpchData, at: Parallelism) -> DataSet:
    """lineitem, summed by subtask -> summed by group -> in order."""
    lineitem = scan(
        job,
        data,
        "lineitem",
        "l_returnflag l_linestatus l_quantity l_extendedprice l_discount l_tax l_shipdate",
        at.lineitem,
    )
    partial = lineitem.sql(
        """
        select l_returnflag, l_linestatus, sum(l_quantity) as sum_qty,
               sum(l_extendedprice) as sum_base_price,
               sum(l_extendedprice * (1 - l_discount)) as sum_disc_price,
               sum(l_extendedprice * (1 - l_discount) * (1 + l_tax)) as sum_charge,
               sum(l_discount) as sum_disc, count(*) as count_order
        from input
        where l_shipdate <= date '1998-12-01' - interval 90 day
        group by l_returnflag, l_linestatus
        """,
        name="partial sums",
    )
    # An average is one division, of whole numbers (cents), as DuckDB does it: bit for bit equal.
    total = partial.hash("l_returnflag", "l_linestatus").sql(
        """
        select l_returnflag, l_linestatus, sum(sum_qty) as sum_qty,
               sum(sum_base_price) as sum_base_price,
               sum(sum_disc_price) as sum_disc_price, sum(sum_charge) as sum_charge,
               (sum(sum_qty) * 100)::double / (sum(count_order) * 100)::double as avg_qty,
               (sum(sum_base_price) * 100)::double / (sum(count_order) * 100)::double as avg_price,
               (sum(sum_disc) * 100)::double / (sum(count_order) * 100)::double as avg_disc,
               sum(count_order)::bigint as count_order
        from input
        group by l_returnflag, l_linestatus
        """,
        name="sums by group",
        parallelism=min(at.join, 4),
    )
    return total.broadcast().sql(
        "select * from input order by l_returnflag, l_linestatus", name="in order", parallelism=1
    )


QUERY = Query(1, "pricing summary report", SQL, ("l_returnflag", "l_linestatus"), plan)
