"""The directory of one shuffle service. See `shuffle.owned_directory`."""

from __future__ import annotations

from shuffle.owned_directory import OwnedDirectory


class ServiceDirectory(OwnedDirectory):
    """It has partitions, and nothing beside them."""

    owner = "shuffle service"
    resource_id_key = "shuffle.service.resource-id"
