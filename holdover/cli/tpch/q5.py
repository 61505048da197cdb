"""Query 5: everything but lineitem is narrowed to one region and one year, then meets lineitem."""

from __future__ import annotations

from holdover.api import DataSet, Job
from holdover.cli.tpch.data import TpchData
from holdover.cli.tpch.query import Parallelism, Query, scan

SQL = """
select n_name, sum(l_extendedprice * (1 - l_discount)) as revenue
from customer, orders, lineitem, supplier, nation, region
where c_custkey = o_custkey
  and l_orderkey = o_orderkey
  and l_suppkey = s_suppkey
  and c_nationkey = s_nationkey
  and s_nationkey = n_nationkey
  and n_regionkey = r_regionkey
  and r_name = 'ASIA'
  and o_orderdate >= date '1994-01-01'
  and o_orderdate < date '1995-01-01'
group by n_name
order by revenue desc
"""


def plan(job: Job, data: TpchData, at: Parallelism) -> DataSet:
    """nations -> customers and suppliers -> orders -> lineitem, summed -> by nation, in order."""
    regions = scan(job, data, "region", "r_regionkey r_name")
    nations = scan(job, data, "nation", "n_nationkey n_name n_regionkey").sql(
        """
        select n_nationkey, n_name
        from input semi join regions on n_regionkey = r_regionkey and r_name = 'ASIA'
        """,
        name="nations of Asia",
        regions=regions.broadcast(),
    )
    suppliers = scan(job, data, "supplier", "s_suppkey s_nationkey").sql(
        """
        select s_suppkey, s_nationkey, n_name
        from input join nations on s_nationkey = n_nationkey
        """,
        name="suppliers",
        nations=nations.broadcast(),
    )
    customers = scan(job, data, "customer", "c_custkey c_nationkey", at.scan).sql(
        "select c_custkey, c_nationkey from input semi join nations on c_nationkey = n_nationkey",
        name="customers",
        nations=nations.broadcast(),
    )
    orders = scan(job, data, "orders", "o_orderkey o_custkey o_orderdate", at.scan).sql(
        """
        select o_orderkey, c_nationkey
        from input join customers on o_custkey = c_custkey
        where o_orderdate >= date '1994-01-01' and o_orderdate < date '1995-01-01'
        """,
        name="their orders of 1994",
        customers=customers.broadcast(),
    )
    revenue = scan(
        job, data, "lineitem", "l_orderkey l_suppkey l_extendedprice l_discount", at.lineitem
    ).sql(
        """
        select n_name, sum(l_extendedprice * (1 - l_discount)) as revenue
        from input
        join orders on l_orderkey = o_orderkey
        join suppliers on l_suppkey = s_suppkey and c_nationkey = s_nationkey
        group by n_name
        """,
        name="partial revenue",
        orders=orders.broadcast(),
        suppliers=suppliers.broadcast(),
    )
    return revenue.broadcast().sql(
        "select n_name, sum(revenue) as revenue from input group by n_name order by revenue desc",
        name="revenue by nation",
        parallelism=1,
    )


QUERY = Query(5, "local supplier volume", SQL, ("revenue",), plan)
