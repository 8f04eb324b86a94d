"""Tables of signs that tests share."""

TWO_HEADS = """
o -++|-
o ++-|+
v1 -+-|-
v1 --+|+
v2 +++|+
v2 -+-|-
q1 +--|+
q1 ---|+
q2 ++-|+
q2 -++|-
k1 ---|-
k1 --+|-
k2 -+-|+
k2 +-+|+
"""
NO_POSITIONS = "o -++\nv +-+\nq +++\nk --+"
