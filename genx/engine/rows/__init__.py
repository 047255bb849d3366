"""A file of prompts as rows: read, checked, generated together, and written so that nothing finished is ever lost."""
