"""Query 3: customers select orders, and these lineitem; ten best of each part, then of all."""

from __future__ import annotations

from holdover.api import DataSet, Job
from holdover.cli.tpch.data import TpchData
from holdover.cli.tpch.query import Parallelism, Query, scan

SQL = """
select l_orderkey, sum(l_extendedprice * (1 - l_discount)) as revenue, o_orderdate, o_shippriority
from customer, orders, lineitem
where c_mktsegment = 'BUILDING'
  and c_custkey = o_custkey
  and l_orderkey = o_orderkey
  and o_orderdate < date '1995-03-15'
  and l_shipdate > date '1995-03-15'
group by l_orderkey, o_orderdate, o_shippriority
order by revenue desc, o_orderdate
limit 10
"""


def plan(job: Job, data: TpchData, at: Parallelism) -> DataSet:
    """customer -> orders of these -> lineitem of these, summed by order -> ten best."""
    customers = scan(job, data, "customer", "c_custkey c_mktsegment", at.scan).sql(
        "select c_custkey from input where c_mktsegment = 'BUILDING'", name="builders"
    )
    orders = scan(
        job, data, "orders", "o_orderkey o_custkey o_orderdate o_shippriority", at.scan
    ).sql(
        """
        select o_orderkey, o_orderdate, o_shippriority
        from input semi join customers on o_custkey = c_custkey
        where o_orderdate < date '1995-03-15'
        """,
        name="their open orders",
        customers=customers.broadcast(),
    )
    # Far fewer orders are left than lineitem has rows: they travel to it, not it to them.
    revenue = scan(
        job, data, "lineitem", "l_orderkey l_extendedprice l_discount l_shipdate", at.lineitem
    ).sql(
        """
        select l_orderkey, sum(l_extendedprice * (1 - l_discount)) as revenue,
               o_orderdate, o_shippriority
        from input join orders on l_orderkey = o_orderkey
        where l_shipdate > date '1995-03-15'
        group by l_orderkey, o_orderdate, o_shippriority
        """,
        name="partial revenue",
        orders=orders.broadcast(),
    )
    best = revenue.hash("l_orderkey").sql(
        """
        select l_orderkey, sum(revenue) as revenue, o_orderdate, o_shippriority
        from input
        group by l_orderkey, o_orderdate, o_shippriority
        order by revenue desc, o_orderdate, l_orderkey
        limit 10
        """,
        name="best of each part",
        parallelism=at.join,
        determinism="determinate",  # the order is total
    )
    return best.broadcast().sql(
        "select * from input order by revenue desc, o_orderdate, l_orderkey limit 10",
        name="best of all",
        parallelism=1,
        determinism="determinate",
    )


QUERY = Query(3, "shipping priority", SQL, ("revenue", "o_orderdate"), plan)
