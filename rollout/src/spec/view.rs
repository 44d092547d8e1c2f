//! Reading values out of a document that has been walked.
//!
//! A value that does not parse reads as absent: the walk has reported it already, and no plan is
//! made from a document with errors.

use std::str::FromStr;

use super::fields::{Object, Shape};
use super::tree::{Entry, Node, Span, child_path, item_path};

/// A map of the document, with its table and its path.
#[derive(Debug, Clone)]
pub(crate) struct View<'t> {
    pub node: &'t Node,
    pub path: String,
    object: &'static Object,
}

/// A value and where it is.
#[derive(Debug, Clone)]
pub(crate) struct Found<'t> {
    pub node: &'t Node,
    pub key_span: Span,
    pub path: String,
}

impl<'t> View<'t> {
    pub fn new(node: &'t Node, object: &'static Object, path: impl Into<String>) -> Self {
        Self { node, path: path.into(), object }
    }

    pub fn find(&self, name: &str) -> Option<Found<'t>> {
        debug_assert!(self.object.field(name).is_some(), "`{name}` is not in table {}", self.object.name);
        #[cfg(test)]
        reads::note(self.object.name, name);
        let Entry { key_span, value, .. } = self.node.entry(name)?;
        Some(Found { node: value, key_span: *key_span, path: child_path(&self.path, name) })
    }

    pub fn has(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    pub fn text(&self, name: &str) -> Option<&'t str> {
        self.find(name)?.node.text()
    }

    pub fn parse<T: FromStr>(&self, name: &str) -> Option<T> {
        self.text(name)?.parse().ok()
    }

    pub fn object(&self, name: &str) -> Option<View<'t>> {
        let found = self.find(name)?;
        let object = table_of(self.object.field(name)?.shape)?;
        Some(View::new(found.node, object, found.path))
    }

    /// The items of a list of objects.
    pub fn objects(&self, name: &str) -> Vec<View<'t>> {
        let Some(found) = self.find(name) else { return Vec::new() };
        let Some(Shape::List { of, .. }) = self.object.field(name).map(|field| field.shape) else {
            return Vec::new();
        };
        let Some(object) = table_of(*of) else { return Vec::new() };
        let items = found.node.items().iter().enumerate();
        items.map(|(index, node)| View::new(node, object, item_path(&found.path, index))).collect()
    }

    /// The entries of a map of objects.
    pub fn map_of_objects(&self, name: &str) -> Vec<(&'t Entry, View<'t>)> {
        let Some(found) = self.find(name) else { return Vec::new() };
        let Some(Shape::Map { of, .. }) = self.object.field(name).map(|field| field.shape) else {
            return Vec::new();
        };
        let Some(object) = table_of(*of) else { return Vec::new() };
        let entries = found.node.entries().iter();
        entries
            .map(|entry| (entry, View::new(&entry.value, object, child_path(&found.path, &entry.key))))
            .collect()
    }
}

fn table_of(shape: Shape) -> Option<&'static Object> {
    match shape {
        Shape::Object(object) => Some(object),
        Shape::Either { of, .. } => of.iter().find_map(|shape| table_of(*shape)),
        _ => None,
    }
}

/// A map of a step over the same map of `defaults`: what the step writes wins, key by key.
#[derive(Debug, Clone)]
pub(crate) struct Layered<'t> {
    /// The step's own, then the defaults'.
    layers: Vec<View<'t>>,
}

impl<'t> Layered<'t> {
    pub fn new(own: Option<View<'t>>, defaults: Option<View<'t>>) -> Self {
        Self { layers: own.into_iter().chain(defaults).collect() }
    }

    pub fn find(&self, name: &str) -> Option<Found<'t>> {
        let known = self.layers.iter().filter(|view| view.object.field(name).is_some());
        known.into_iter().find_map(|view| view.find(name))
    }

    pub fn text(&self, name: &str) -> Option<&'t str> {
        self.find(name)?.node.text()
    }

    pub fn parse<T: FromStr>(&self, name: &str) -> Option<T> {
        self.text(name)?.parse().ok()
    }

    pub fn object(&self, name: &str) -> Layered<'t> {
        let known = self.layers.iter().filter(|view| view.object.field(name).is_some());
        Self { layers: known.filter_map(|view| view.object(name)).collect() }
    }

    /// The winning list.
    pub fn objects(&self, name: &str) -> Vec<View<'t>> {
        let known = self.layers.iter().filter(|view| view.object.field(name).is_some());
        known.into_iter().find(|view| view.has(name)).map(|view| view.objects(name)).unwrap_or_default()
    }

    /// Each layer, the step's own first.
    pub fn layers(&self) -> &[View<'t>] {
        &self.layers
    }
}

/// Which fields the reader asks for: a test compares them with the tables.
#[cfg(test)]
pub(crate) mod reads {
    use std::cell::RefCell;
    use std::collections::BTreeSet;

    thread_local! {
        static READS: RefCell<BTreeSet<(&'static str, String)>> = const { RefCell::new(BTreeSet::new()) };
    }

    pub fn note(object: &'static str, field: &str) {
        READS.with_borrow_mut(|reads| reads.insert((object, field.to_owned())));
    }

    pub fn take() -> BTreeSet<(&'static str, String)> {
        READS.take()
    }
}
