"""The devices: a mesh over them, how arrays lie on it, and what they compute best."""
