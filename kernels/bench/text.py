"""Format the tables of kernels.bench as text."""

LANGUAGES = "flash ms", "forward ms", "backward ms", "token µs"


def text(table):
    """Return every section of the table as text, after the machine and date of the measurement."""
    sections = [
        ("training", "float32", sequences),
        ("halves", "bfloat16", sequences),
        ("flash", "bfloat16, no taps, forward; CUDA graphs; ms", flash),
        ("decoding", "one token, float32; CUDA graphs; microseconds", tokens),
        ("decoding_halves", "one token, bfloat16; CUDA graphs; microseconds", tokens),
        ("languages", "float32", of_languages),
    ]
    lines = ["{gpu}, {date}, torch {torch}, numba {numba}; causal".format(**table)]
    for name, title, lines_of in sections:
        if table.get(name):
            lines += ["", title, *lines_of(table[name])]
    lines += [
        "",
        "bytes: to read K and V once, at the {:.2f} TB/s of a copy".format(table["bandwidth"] / 1e12),
    ]
    return "\n".join(lines)


def shape_of(row):
    return ", ".join(map(str, row["shape"]))


def name_of(row):
    """Return the contestant's name, with the backend that PyTorch chose."""
    return " ".join(filter(None, [row["name"], row.get("backend")]))


def sequences(rows):
    heads = f"{'forward ms':>11} {'backward ms':>12} {'peak MiB':>9} {'error':>8}"
    yield f"{'B, H, N, d':>18} {'taps':>6} {'':>14} {heads}"
    for row in rows:
        taps = "×".join(map(str, row["taps"]))
        start = f"{shape_of(row):>18} {taps:>6} {name_of(row):>14}"
        if "refused" in row:
            yield f"{start}  refused: {row['refused']}"
        else:
            yield (
                f"{start} {row['forward_ms']:11.3f} {row['backward_ms']:12.3f} {row['peak_mib']:9.1f}"
                f" {max(row['errors']):8.0e}"
            )


def flash(rows):
    for row in rows:
        time = f"refused: {row['refused']}" if "refused" in row else f"{row['forward_ms']:11.3f}"
        yield f"{shape_of(row):>18} {'':>6} {name_of(row):>14} {time}"


def tokens(rows):
    """Return a line per cache, followed by the reason for each contestant that was not timed."""
    names = list(dict.fromkeys(row["name"] for row in rows))
    yield f"{'B, H, N, d':>18} {'bytes':>9}" + "".join(f" {name:>10}" for name in names) + "  sdpa is"
    for shape in dict.fromkeys(tuple(row["shape"]) for row in rows):
        here = [row for row in rows if tuple(row["shape"]) == shape]
        times = "".join(f" {row['us']:10.1f}" if "us" in row else f" {'refused':>10}" for row in here)
        backend = next(row["backend"] for row in here if row["name"] == "sdpa")
        yield f"{shape_of(here[0]):>18} {here[0]['least_us']:9.1f}{times}  {backend}"
    for row in rows:
        if "refused" in row:
            yield f"{shape_of(row):>18} {row['name']}: {row['refused']}"


def of_languages(rows):
    yield f"{'B, H, N, d':>18} {'':>8}" + "".join(f" {head:>11}" for head in LANGUAGES)
    for row in rows:
        times = row["flash_ms"], row["forward_ms"], row["backward_ms"], row["us"]
        yield f"{shape_of(row):>18} {row['name']:>8}" + "".join(f" {time:11.3f}" for time in times)
