//! Writes a small, always equal job: `cargo run -p datasets --example sample_table -- DIR` puts
//! its tables under DIR, in three shards of 2, 1 and 3 groups. The Python tests read them, and
//! the golden files of a version are made by it.

use std::error::Error;
use std::path::Path;

use datasets::table::TableWriter;
use rollout::plan::ShardPlan;

#[path = "../tests/support/sample.rs"]
mod sample;

fn main() -> Result<(), Box<dyn Error>> {
    let root = std::env::args_os().nth(1).ok_or("usage: sample_table DIR")?;
    let mut blobs = sample::Blobs::default();
    let (mut writer, _) = TableWriter::open(Path::new(&root), sample::meta(), ShardPlan::default())?;
    for shard in [1..=2, 3..=3, 4..=6] {
        for seq in shard {
            let group = sample::group(seq, &mut blobs);
            writer.append(&group, &|digest, bytes_max| blobs.fetch(digest, bytes_max))?;
        }
        writer.seal()?;
    }
    Ok(())
}
