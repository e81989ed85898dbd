"""Files that declare schedules: read, checked, planned, applied in one transaction, and written.

documents, yaml_documents, json_documents   trees that know where each value stands
kinds, fields, schema                       what a file may say, and its JSON Schema
definitions, function_entries, reading      what it says; every mistake with its line
plans, rows                                 what it changes; the rows, in bulk
exports                                     rows as such a file
"""

from pgbeat.schedules.files.definitions import Definition
from pgbeat.schedules.files.documents import Mistake
from pgbeat.schedules.files.reading import Check, File, InvalidFile, read

__all__ = ["Check", "Definition", "File", "InvalidFile", "Mistake", "read"]
