"""Anonymisation: what tables say of people is replaced, coarsened or left out until nobody stands out.

In: a recipe and tables. Out: tables, and a report that holds nothing of them. Users find the names in `hetero.batch`.
"""

from hetero.floor.extras import need

need("pyarrow", "anonymising tables")
