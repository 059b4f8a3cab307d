"""How each format of a file becomes rows or documents: a module a family; `documents.read` chooses."""
