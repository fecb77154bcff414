"""Deployments over a migrated database of the test's own, and the real application over them."""

from __future__ import annotations

from api.fixtures import admin_pool as admin_pool
from api.fixtures import application as application
from api.fixtures import database_template as database_template
from api.fixtures import deployment as deployment
