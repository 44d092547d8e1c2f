//! Writes the column lists into docs/tables.md: `cargo run -p datasets --example table_reference`.

use std::error::Error;
use std::fs;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/tables.md");
    let document = fs::read_to_string(&path)?;
    fs::write(&path, datasets::reference::with_columns(&document))?;
    Ok(())
}
