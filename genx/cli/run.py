"""genx run."""
import typer

app = typer.Typer(rich_markup_mode=None)

@app.command()
def run(context: typer.Context, prompt: str, top_k: int | None = None) -> int:
    """Generate."""
    return 0
