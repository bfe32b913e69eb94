from tests.equivalence.conftest import programs_of_the_tree

__all__ = ["programs_of_the_tree"]
