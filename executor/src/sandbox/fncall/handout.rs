//! A sandbox that was handed out: the one of the container backend, without what is about its workspace
//! as a layer.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use images::layers::Packed;
use rollout::Bytes;
use rollout::quantity::Limit;

use super::pool::Claim;
use crate::sandbox::{
    Deed, DestroyError, Driven, FileError, FileSource, LayError, Listing, Mounted, Pack, PackError, Process,
    Sandbox, Spawn, SpawnError, Stats,
};

/// As refusals name the backend.
const BACKEND: &str = "fncall";

#[derive(Debug)]
pub(super) struct Handout {
    sandbox: Box<dyn Sandbox>,
    /// As the call named it.
    id: String,
    /// Given up behind the sandbox.
    claim: Claim,
}

impl Handout {
    pub fn new(sandbox: Box<dyn Sandbox>, id: String, claim: Claim) -> Self {
        Self { sandbox, id, claim }
    }
}

#[tonic::async_trait]
impl Sandbox for Handout {
    fn image_digest(&self) -> &str {
        self.sandbox.image_digest()
    }

    fn image_env(&self) -> &[(String, String)] {
        self.sandbox.image_env()
    }

    async fn write_file(
        &self,
        path: &str,
        content: FileSource,
        mode: u32,
        owner: &str,
    ) -> Result<(), FileError> {
        self.sandbox.write_file(path, content, mode, owner).await
    }

    async fn reset_dir(&self, path: &str, mode: u32, owner: &str) -> Result<(), FileError> {
        self.sandbox.reset_dir(path, mode, owner).await
    }

    async fn open_file(&self, path: &str) -> Result<Option<(File, Bytes)>, FileError> {
        self.sandbox.open_file(path).await
    }

    async fn list(&self, path: &str, names_max: usize) -> Result<Option<Listing>, FileError> {
        self.sandbox.list(path, names_max).await
    }

    async fn make_dir(&self, path: &str, owner: &str) -> Result<(), FileError> {
        self.sandbox.make_dir(path, owner).await
    }

    async fn spawn(&self, spawn: Spawn) -> Result<Box<dyn Process>, SpawnError> {
        self.sandbox.spawn(spawn).await
    }

    fn deed(&self) -> Option<Deed> {
        self.sandbox.deed()
    }

    fn number(&self) -> u32 {
        self.sandbox.number()
    }

    async fn spawn_numbered(&self, number: u32, spawn: Spawn) -> Result<Box<dyn Process>, SpawnError> {
        self.sandbox.spawn_numbered(number, spawn).await
    }

    fn find(&self, number: u32) -> Option<Box<dyn Process>> {
        self.sandbox.find(number)
    }

    async fn entrust(&self, number: u32, ends: Vec<OwnedFd>) -> Result<(), io::Error> {
        self.sandbox.entrust(number, ends).await
    }

    async fn entrusted(&self, number: u32, count: u8) -> Result<Vec<OwnedFd>, io::Error> {
        self.sandbox.entrusted(number, count).await
    }

    async fn give_up(&self, number: u32) {
        self.sandbox.give_up(number).await;
    }

    fn driven(&self) -> Option<&dyn Driven> {
        self.sandbox.driven()
    }

    fn layers(&self) -> &[Mounted] {
        self.sandbox.layers()
    }

    async fn lay_over(&self, _: &Mounted) -> Result<(), LayError> {
        Err(LayError::NotOffered { backend: BACKEND })
    }

    async fn pack(&self, _: Pack) -> Result<Packed, PackError> {
        Err(PackError::NotOffered { backend: BACKEND })
    }

    async fn kill_all(&self) -> Result<(), io::Error> {
        self.sandbox.kill_all().await
    }

    async fn memory_held(&self) -> Option<Bytes> {
        self.sandbox.memory_held().await
    }

    async fn stats(&self) -> Stats {
        self.sandbox.stats().await
    }

    async fn set_limits(&self, limits: Limit) -> Result<(), io::Error> {
        self.sandbox.set_limits(limits).await
    }

    async fn died(&self) -> String {
        self.sandbox.died().await
    }

    async fn destroy(self: Box<Self>) -> Result<(), DestroyError> {
        let Self { sandbox, id, claim } = *self;
        let destroyed = sandbox.destroy().await;
        drop(claim);
        destroyed.map_err(|error| DestroyError { id, left: error.left })
    }
}
