import sys

print(sys.argv, sys.path[0], __name__, __file__, __package__, __spec__ is None)
raise ValueError("from the folder")
