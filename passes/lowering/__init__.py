"""How each ATen operator becomes loops: one file per family of operators; see `passes/convert_aten_to_loop.py`.

`call.py` reads the arguments of a call, `body.py` emits scalar operations, `nest.py` puts them into nests, `dtypes.py`
knows torch's dtypes and their promotion. The other files hold the families, each with a table `LOWERINGS` from operator
to function.
"""
