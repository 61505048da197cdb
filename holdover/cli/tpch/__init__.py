"""TPC-H as Holdover jobs: the data, five of the queries, and the check against DuckDB.

Shared by `holdover demo`, the files in examples/tpch (to be submitted to any cluster), the tests
and the benchmarks. The specification is public: https://www.tpc.org/tpch/.
"""
