"""Query 18: all of lineitem summed by order and exchanged; the few large orders fetch the rest."""

from __future__ import annotations

from holdover.api import DataSet, Job
from holdover.cli.tpch.data import TpchData
from holdover.cli.tpch.query import Parallelism, Query, scan

SQL = """
select c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice, sum(l_quantity) as sum_quantity
from customer, orders, lineitem
where o_orderkey in (
        select l_orderkey from lineitem group by l_orderkey having sum(l_quantity) > 300)
  and c_custkey = o_custkey
  and o_orderkey = l_orderkey
group by c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice
order by o_totalprice desc, o_orderdate
limit 100
"""


def plan(job: Job, data: TpchData, at: Parallelism) -> DataSet:
    """lineitem summed by order -> large orders -> their rows of orders, of customer -> the top."""
    partial = scan(job, data, "lineitem", "l_orderkey l_quantity", at.lineitem).sql(
        "select l_orderkey, sum(l_quantity) as quantity from input group by l_orderkey",
        name="partial quantities",
    )
    # The sum that selects an order is the sum that the query asks for: lineitem is read once.
    large = partial.hash("l_orderkey").sql(
        """
        select l_orderkey, sum(quantity) as sum_quantity
        from input group by l_orderkey having sum(quantity) > 300
        """,
        name="large orders",
        parallelism=at.join,
    )
    orders = scan(
        job, data, "orders", "o_orderkey o_custkey o_orderdate o_totalprice", at.scan
    ).sql(
        """
        select o_orderkey, o_custkey, o_orderdate, o_totalprice, sum_quantity
        from input join large on o_orderkey = l_orderkey
        """,
        name="their orders",
        large=large.broadcast(),
    )
    named = scan(job, data, "customer", "c_custkey c_name", at.scan).sql(
        """
        select c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice, sum_quantity
        from input join orders on c_custkey = o_custkey
        """,
        name="their customers",
        orders=orders.broadcast(),
    )
    return named.broadcast().sql(
        """
        select * from input order by o_totalprice desc, o_orderdate, o_orderkey limit 100
        """,
        name="top 100",
        parallelism=1,
        determinism="determinate",  # the order is total
    )


QUERY = Query(18, "large volume customers", SQL, ("o_totalprice", "o_orderdate"), plan)
