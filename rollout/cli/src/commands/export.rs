//! `export`: sealed tables, copied into what other programs read. No yard is needed for a folder.

use std::path::PathBuf;

use datasets::export::{Format, Request, Selection};
use datasets::schema::Table;
use rollout::JobId;

use super::{Context, absolute};
use crate::args;
use crate::args::ExportFormat;
use crate::client::Client;
use crate::error::Error;
use crate::exit::ExitStatus;
use crate::view::Exported;

pub async fn export(context: &Context, args: &args::Export) -> Result<ExitStatus, Error> {
    let format = match args.format {
        ExportFormat::Parquet => Format::Parquet,
        ExportFormat::IpcFile => Format::IpcFile,
        ExportFormat::Jsonl => Format::Jsonl,
        ExportFormat::Hf => Format::HuggingFace,
        ExportFormat::Atif => return Err(Error::NoFormat { format: "atif" }),
        ExportFormat::Harbor => return Err(Error::NoFormat { format: "harbor" }),
    };
    let split = args.split.map(|split| match split {
        args::Split::Train => rollout::plan::Split::Train,
        args::Split::Eval => rollout::plan::Split::Eval,
    });
    let selection = Selection { trainable: args.trainable, valid: args.valid, split, superseded: args.all };
    let source = source(context, &args.source).await?;
    let out = absolute(&args.out)?;
    let request = Request { source, out, format, selection, overwrite: args.overwrite };
    let copied = tokio::task::spawn_blocking(move || datasets::export::export(&request)).await;
    let copied = match copied {
        Ok(copied) => copied.map_err(|source| Error::Export { name: args.source.clone(), source })?,
        Err(panic) => std::panic::resume_unwind(panic.into_panic()),
    };
    let exported: Vec<_> = copied.into_iter().map(Exported::from).collect();
    Context::print(&context.output.exported(&exported))?;
    Ok(ExitStatus::Success)
}

/// A folder that is there, else the tables of a job the yard knows.
async fn source(context: &Context, text: &str) -> Result<PathBuf, Error> {
    let path = absolute(text.as_ref())?;
    if path.is_dir() {
        return Ok(path);
    }
    let (job, table) = text.split_once('/').map_or((text, None), |(job, table)| (job, Some(table)));
    let (Ok(id), None | Some(Some(_))) = (job.parse::<JobId>(), table.map(Table::named)) else {
        return Ok(path);
    };
    let question = async |client: &Client| Ok(client.get(&id.to_string()).await?.table_root);
    let root = context.ask(question, |_| false).await?;
    let dir = PathBuf::from(root).join(id.to_string());
    Ok(table.map_or(dir.clone(), |table| dir.join(table)))
}
