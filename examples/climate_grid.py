"""Winds on a grid of latitudes and longitudes, one step of transport, and a PNG: what climate.py builds on."""

import struct
import zlib

import numpy as np

EARTH_M = 6_371_000.0


def read_winds(path):
    """Return (u, v) in m/s by 'month-level' from a NetCDF-3 file; rows go from north to south."""
    from scipy.io import netcdf_file

    with netcdf_file(path, mmap=False) as file:
        u, v = (file.variables[name] for name in "uv")
        fields = [np.asarray(each.data, np.float64) * each.scale_factor + each.add_offset for each in (u, v)]
        levels = file.variables["level"].data
        return {
            f"month{month}-{level}hPa": (fields[0][month, at], fields[1][month, at])
            for month in range(len(fields[0]))
            for at, level in enumerate(levels)
        }


def synthetic_winds(rows=91, columns=180, fields=6):
    """Return westerlies with waves, in m/s."""
    lat, lon = np.meshgrid(np.linspace(np.pi / 2, -np.pi / 2, rows), np.linspace(0, 2 * np.pi, columns), indexing="ij")
    return {
        f"made-up-{wave}": (30.0 * np.cos(lat) * np.sin(2 * lat) ** 2, 8.0 * np.cos(lat) * np.sin(wave * lon))
        for wave in range(1, fields + 1)
    }


def carry(tracer, u, v, step_s):
    """Return the tracer one step later: each point takes the value from where its air was."""
    rows, columns = tracer.shape
    lat = np.linspace(np.pi / 2, -np.pi / 2, rows)[:, None]
    row = np.arange(rows)[:, None] + v * step_s / EARTH_M / (np.pi / (rows - 1))
    column = np.arange(columns) - u * step_s / (EARTH_M * np.maximum(np.cos(lat), 0.02)) / (2 * np.pi / columns)
    row = np.clip(row, 0.0, rows - 1.001)
    top, left = np.floor(row).astype(int), np.floor(column).astype(int)
    down, right = row - top, column - left
    left, after = left % columns, (left + 1) % columns
    upper = tracer[top, left] * (1 - right) + tracer[top, after] * right
    lower = tracer[top + 1, left] * (1 - right) + tracer[top + 1, after] * right
    return upper * (1 - down) + lower * down


def vorticity(u, v):
    """Return a map of the winds' relative vorticity as a PNG, from -1e-4 (blue) to 1e-4 (red) per second."""
    lat = np.deg2rad(np.linspace(90.0, -90.0, len(u)))
    cos = np.maximum(np.cos(lat), 0.05)[:, None]
    east = np.gradient(v, axis=1) / (EARTH_M * cos * 2.0 * np.pi / u.shape[1])
    north = np.gradient(u * cos, lat, axis=0) / (EARTH_M * cos)
    return png(shaded((east - north) * 1e4))


def map_of(tracer):
    """Return a map of the tracer, from -1 (blue) to 1 (red), with a bar for each zonal mean beside it, as a PNG."""
    zonal, at = tracer.mean(axis=1, keepdims=True), np.linspace(-1.0, 1.0, 61)
    bars = np.where((at * zonal > 0.0) & (abs(at) <= abs(zonal)), np.sign(zonal), 0.0)
    gap = np.full((len(tracer), 4, 3), 128, np.uint8)
    return png(np.hstack([shaded(tracer), gap, shaded(bars)]))


def shaded(field):
    """Return a field from -1 to 1 as red, green and blue bytes: blue below zero, white at it, red above."""
    share = np.clip(field, -1.0, 1.0)[..., None]
    away = np.where(share > 0.0, np.array([178, 24, 43]), np.array([33, 102, 172])) - 255
    return (255 + abs(share) * away).astype(np.uint8)


def png(rgb):
    """Return an 8-bit picture in colour as the bytes of a PNG file."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", rgb.shape[1], rgb.shape[0], 8, 2, 0, 0, 0)
    lines = b"".join(b"\0" + row.tobytes() for row in rgb)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")


if __name__ == "__main__":
    made = synthetic_winds(fields=1)["made-up-1"]
    print("a part of climate.py; greatest wind", round(float(np.hypot(*made).max()), 1), "m/s")
