"""Query 9, the one of the demo: six tables, the largest exchanges, and work in every stage."""

from __future__ import annotations

from holdover.api import DataSet, Job
from holdover.cli.tpch.data import TpchData
from holdover.cli.tpch.query import Parallelism, Query, scan

SQL = """
select nation, o_year, sum(amount) as sum_profit
from (
    select n_name as nation, extract(year from o_orderdate) as o_year,
           l_extendedprice * (1 - l_discount) - ps_supplycost * l_quantity as amount
    from part, supplier, lineitem, partsupp, orders, nation
    where s_suppkey = l_suppkey
      and ps_suppkey = l_suppkey
      and ps_partkey = l_partkey
      and p_partkey = l_partkey
      and o_orderkey = l_orderkey
      and s_nationkey = n_nationkey
      and p_name like '%green%'
) as profit
group by nation, o_year
order by nation, o_year desc
"""


def plan(job: Job, data: TpchData, at: Parallelism) -> DataSet:
    """part -> its supplies -> lineitem of these, hash joined with orders, summed -> in order."""
    parts = scan(job, data, "part", "p_partkey p_name", max(1, at.scan // 2)).sql(
        "select p_partkey from input where p_name like '%green%'", name="green parts"
    )
    nations = scan(job, data, "nation", "n_nationkey n_name")
    suppliers = scan(job, data, "supplier", "s_suppkey s_nationkey").sql(
        "select s_suppkey, n_name as nation from input join nations on s_nationkey = n_nationkey",
        name="suppliers",
        nations=nations.broadcast(),
    )
    # One part in twenty is green. Its supplies, with their nations, are few enough to travel to
    # lineitem, which is then narrowed to one row in twenty where it is read.
    supplies = scan(job, data, "partsupp", "ps_partkey ps_suppkey ps_supplycost", at.scan).sql(
        """
        select ps_partkey, ps_suppkey, ps_supplycost, nation
        from input
        semi join parts on ps_partkey = p_partkey
        join suppliers on ps_suppkey = s_suppkey
        """,
        name="green supplies",
        parts=parts.broadcast(),
        suppliers=suppliers.broadcast(),
    )
    amounts = scan(
        job,
        data,
        "lineitem",
        "l_orderkey l_partkey l_suppkey l_quantity l_extendedprice l_discount",
        at.lineitem,
    ).sql(
        """
        select l_orderkey, nation,
               l_extendedprice * (1 - l_discount) - ps_supplycost * l_quantity as amount
        from input join supplies on l_partkey = ps_partkey and l_suppkey = ps_suppkey
        """,
        name="amounts",
        supplies=supplies.broadcast(),
    )
    orders = scan(job, data, "orders", "o_orderkey o_orderdate", at.scan)
    profit = job.sql(
        """
        select nation, extract(year from o_orderdate) as o_year, sum(amount) as sum_profit
        from orders join amounts on o_orderkey = l_orderkey
        group by nation, o_year
        """,
        name="partial profit",
        parallelism=at.join,
        amounts=amounts.hash("l_orderkey"),
        orders=orders.hash("o_orderkey"),
    )
    return profit.broadcast().sql(
        """
        select nation, o_year, sum(sum_profit) as sum_profit
        from input group by nation, o_year order by nation, o_year desc
        """,
        name="profit by nation and year",
        parallelism=1,
    )


QUERY = Query(9, "product type profit", SQL, ("nation", "o_year"), plan)
