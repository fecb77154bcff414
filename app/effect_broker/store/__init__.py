"""The store on Postgres: the authority over effects. The only package that imports psycopg.

postgres    the effect store of the protocol: submit, load, change, mutate, payload
runs        what workers ask on top: heartbeats, dead executors, due effects
tenants, catalogue, reads, health   what the API and the command line ask
migrate     the schema, the roles and their rights
pool, roles, errors                 connections, whose they are, and what goes wrong
"""
