"""Galleries in Milvus: a server for large ones, a local file of milvus-lite for small ones."""
