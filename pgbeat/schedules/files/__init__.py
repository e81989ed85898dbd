"""Files that declare a set-up: read, checked, planned, applied in one transaction, and written.

documents, yaml_documents, json_documents   trees of values and their places in the file
kinds, fields, schema                       the fields of a file, and its JSON Schema
nouns                                       what it declares beside schedules
definitions, function_entries, reading      the content of a file; every mistake with its line
plans, rows                                 the changes that a file makes, in bulk
exports                                     rows as such a file
"""

from pgbeat.schedules.files.definitions import Definition
from pgbeat.schedules.files.documents import Mistake
from pgbeat.schedules.files.reading import Check, File, InvalidFile, plain_documents, read

__all__ = ["Check", "Definition", "File", "InvalidFile", "Mistake", "plain_documents", "read"]
