//! `image`: the images of this machine, in the data directory. No yard is needed.

use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use images::oci::layout::Layout;
use images::oci::library::{Kept, Library};
use images::oci::registry::{Client as Registries, docker_config};
use rollout::image::{ImageRef, Pick};

use super::{Context, absolute};
use crate::args;
use crate::builder;
use crate::error::Error;
use crate::exit::ExitStatus;
use crate::local_images::opened;
use crate::view::{ImageRow, ImageUsage};
use crate::yard::IMAGES_DIR;

/// Characters of a name.
const NAME_CHARS_MAX: usize = 128;

pub async fn image(context: &Context, args: &args::Image) -> Result<ExitStatus, Error> {
    match args {
        args::Image::Pull(args) => pull(context, &args.reference).await,
        args::Image::Import(args) => import(context, &args.path, args.name.as_deref()).await,
        args::Image::Build(args) => build(context, args).await,
        args::Image::Ls => {
            let library = library(context)?;
            let kept = library.list().await.map_err(of("the images of this machine"))?;
            let rows: Vec<_> = kept.iter().map(|kept| row(&library, kept)).collect();
            Context::print(&context.output.images(&rows))?;
            Ok(ExitStatus::Success)
        }
        args::Image::Rm(args) => {
            let bytes = library(context)?.remove(&args.name).await.map_err(of(&args.name))?;
            context.talk.say(&format!("removed {}, {}", args.name, rollout::Bytes(bytes)));
            Ok(ExitStatus::Success)
        }
        args::Image::Du => {
            let library = library(context)?;
            let usage = library.usage().map_err(of("the images of this machine"))?;
            let path = context.data_dir.join(IMAGES_DIR).display().to_string();
            let usage = ImageUsage { images: usage.images, blobs: usage.blobs, bytes: usage.bytes, path };
            Context::print(&context.output.image_usage(&usage))?;
            Ok(ExitStatus::Success)
        }
    }
}

fn library(context: &Context) -> Result<Library, Error> {
    let root = context.data_dir.join(IMAGES_DIR);
    Library::open(&root).map_err(of(&root.display().to_string()))
}

/// What went wrong with the image of that name.
fn of(name: &str) -> impl FnOnce(images::oci::Error) -> Error {
    let reference = name.to_owned();
    move |source| Error::Image { reference, source: Box::new(source) }
}

fn row(library: &Library, kept: &Kept) -> ImageRow {
    ImageRow {
        name: kept.name.clone(),
        digest: kept.digest.to_string(),
        layers: kept.image.as_ref().map_or(0, |image| image.layers.len()),
        bytes: kept.bytes(),
        reference: library.reference(&kept.name),
    }
}

fn tell(context: &Context, library: &Library, kept: &Kept) -> Result<ExitStatus, Error> {
    Context::print(&context.output.images(&[row(library, kept)]))?;
    Ok(ExitStatus::Success)
}

async fn pull(context: &Context, text: &str) -> Result<ExitStatus, Error> {
    let reference = match text.parse::<ImageRef>() {
        Ok(ImageRef::Registry(reference)) => reference,
        Ok(_) => {
            let problem =
                "only an image of a registry is pulled; use `rollyard image import` for a path".to_owned();
            return Err(Error::ImageName { text: text.to_owned(), problem });
        }
        Err(error) => {
            return Err(Error::ImageName { text: text.to_owned(), problem: error.problem.to_owned() });
        }
    };
    let registries = Registries::new(docker_config());
    let library = library(context)?;
    let digest = registries.resolve(&reference).await.map_err(of(text))?;
    let repository = registries.repository(&reference);
    let kept = library.add(&repository, &digest, &reference.to_string()).await.map_err(of(text))?;
    tell(context, &library, &kept)
}

async fn import(context: &Context, path: &str, name: Option<&str>) -> Result<ExitStatus, Error> {
    // A file is an archive; a directory a layout, with a tag or a digest if there is no such path.
    let reference = if Path::new(path).is_file() {
        ImageRef::Archive { path: path.to_owned() }
    } else if Path::new(path).is_dir() {
        ImageRef::Layout { path: path.to_owned(), pick: Pick::Only }
    } else {
        let parsed = format!("oci-layout:{path}").parse::<ImageRef>();
        parsed
            .map_err(|error| Error::ImageName { text: path.to_owned(), problem: error.problem.to_owned() })?
    };
    add_local(context, &reference, path, name).await
}

async fn add_local(
    context: &Context,
    reference: &ImageRef,
    shown: &str,
    name: Option<&str>,
) -> Result<ExitStatus, Error> {
    let here = absolute(Path::new("."))?;
    let local = opened(reference, &here).await.map_err(of(shown))?;
    let name = match name {
        Some(name) => name.to_owned(),
        None => own_name(&local.layout, &local.digest, reference),
    };
    let is_plain = |c: char| !c.is_whitespace() && !rollout::text::is_deceptive(c);
    if name.is_empty() || name.chars().count() > NAME_CHARS_MAX || !name.chars().all(is_plain) {
        let problem = format!("a name is 1 to {NAME_CHARS_MAX} characters without spaces");
        return Err(Error::ImageName { text: name, problem });
    }
    let library = library(context)?;
    let kept = library.add(&local.layout, &local.digest, &name).await.map_err(of(shown))?;
    tell(context, &library, &kept)
}

fn own_name(layout: &Layout, digest: &rollout::image::Digest, reference: &ImageRef) -> String {
    let images = layout.images().unwrap_or_default();
    let tag = images.into_iter().find(|(_, image)| image.digest == *digest).and_then(|(name, _)| name);
    tag.unwrap_or_else(|| {
        let (ImageRef::Layout { path, .. } | ImageRef::Archive { path }) = reference else {
            return String::new();
        };
        Path::new(path).file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default()
    })
}

async fn build(context: &Context, args: &args::ImageBuild) -> Result<ExitStatus, Error> {
    let dir = absolute(&args.dir)?;
    let file = args.file.clone().map_or_else(|| Ok(dir.join("Dockerfile")), |file| absolute(&file))?;
    if !file.is_file() {
        let source = std::io::Error::from(std::io::ErrorKind::NotFound);
        return Err(Error::ReadFile { path: file, source });
    }
    let name = args.name.clone().or_else(|| Some(dir.file_name()?.to_string_lossy().into_owned()));
    let name = name.unwrap_or_default();
    let scratch = tempfile::tempdir_in(scratch_dir(context)?)
        .map_err(|source| Error::WriteFile { path: context.data_dir.clone(), source })?;
    let archive = scratch.path().join("image.tar");
    builder::build(&dir, &file, &archive).await?;
    let path = archive.display().to_string();
    add_local(context, &ImageRef::Archive { path }, &name, Some(&name)).await
}

/// With the parents it lacks, each for its owner alone: the yard that is started there later trusts that.
fn make_private(dir: &Path) -> Result<(), Error> {
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.map_err(|source| Error::WriteFile { path: dir.to_owned(), source })
}

/// Beside the library: a build may be larger than what is mounted at /tmp.
fn scratch_dir(context: &Context) -> Result<PathBuf, Error> {
    let dir = context.data_dir.join("scratch");
    make_private(&dir)?;
    Ok(dir)
}
