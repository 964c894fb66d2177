"""Searches: generators of ever better schedules, pulled by a driver until its budget ends."""
