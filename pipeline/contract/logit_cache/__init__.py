"""The teacher-logit cache: written once by stage one, read by every student. Needs no torch."""

from pipeline.contract.logit_cache.padded import PaddedDocuments
from pipeline.contract.logit_cache.reader import LogitCache
from pipeline.contract.logit_cache.schema import FORMAT_VERSION, CachedDocument

__all__ = ["FORMAT_VERSION", "CachedDocument", "LogitCache", "PaddedDocuments"]
