"""The devices: what they can do, the mesh over them, how arrays are sharded, and number formats."""
