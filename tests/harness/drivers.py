ALL = []
def run(*_): pass
