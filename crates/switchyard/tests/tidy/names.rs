//! What code names: a resolver of paths.
//!
//! [`paths`] are those of one file. [`uses`] says which file of a crate names what of which other file. A file uses another file if its code names an item that the other file defines. `mod x;` and `pub use x::Y;` are not
//! uses: a name that comes through them counts where code names it. A method counts by the file of its `impl` block if the
//! text says which type has it: `self.method()`, `Self::method` and `Type::method`.
//! Tests are aside. Names that macros make are unknown here, and so are types that only a compiler can infer.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};

/// For each file the files that its code uses, each with one of the names that make it so.
pub type Uses = BTreeMap<String, BTreeMap<String, String>>;

/// An item by its module and name.
type Item = (usize, String);

/// A file and the methods and types that it has of the crate, and what it imports.
struct Module {
    file: String,
    parent: Option<usize>,
    names: BTreeMap<String, Vec<Target>>,
    globs: Vec<Vec<String>>,
    items: Vec<syn::Item>,
}

enum Target {
    Item,
    Module(usize),
    Import(Vec<String>),
}

/// What a path leads to. An item comes with the name after it, as of `Type::method`.
#[derive(PartialEq)]
enum Found {
    Item(Item, Option<String>),
    Module(usize),
}

#[derive(Default)]
struct Crate {
    modules: Vec<Module>,
    /// Files with an inherent `impl` of a type that has this function or constant.
    methods: BTreeMap<(Item, String), BTreeSet<String>>,
}

/// The uses between the files of the crate whose root is `root`. `read` answers a file's text.
pub fn uses(root: &str, read: &dyn Fn(&str) -> Option<String>) -> Uses {
    let mut found = Crate::default();
    let text = read(root).expect("a crate has its root");
    let items = syn::parse_file(&text).expect("the compiler takes it, too").items;
    let dir = Path::new(root).parent().expect("a root has a directory").into();
    found.add(root.into(), dir, None, items, read);
    found.find_methods();
    let mut uses = Uses::new();
    for module in 0..found.modules.len() {
        let mut code = Code::new(&found, module);
        for item in &found.modules[module].items {
            code.visit_item(item);
        }
        let of_file = uses.entry(found.modules[module].file.clone()).or_default();
        of_file.extend(code.uses);
    }
    uses
}

impl Crate {
    /// Adds a module with the modules in it. `dir` is where files of these are.
    fn add(
        &mut self,
        file: String,
        dir: PathBuf,
        parent: Option<usize>,
        items: Vec<syn::Item>,
        read: &dyn Fn(&str) -> Option<String>,
    ) -> usize {
        let index = self.modules.len();
        self.modules.push(Module {
            file: file.clone(),
            parent,
            names: BTreeMap::new(),
            globs: Vec::new(),
            items: Vec::new(),
        });
        let mut rest = Vec::new();
        for mut item in items.into_iter().filter(|item| !is_test(attributes(item))) {
            let syn::Item::Mod(module) = &mut item else {
                rest.push(item);
                continue;
            };
            let name = module.ident.to_string();
            let inside = dir.join(&name);
            let child = match module.content.take() {
                Some((_, items)) => self.add(file.clone(), inside, Some(index), items, read),
                None => {
                    let path = |path: PathBuf| path.to_str().expect("plain names").to_string();
                    let candidates = [path(dir.join(format!("{name}.rs"))), path(inside.join("mod.rs"))];
                    let found = candidates
                        .into_iter()
                        .find_map(|path| read(&path).map(|text| (path, text)));
                    let (path, text) =
                        found.unwrap_or_else(|| panic!("{file} has no file for its module {name}"));
                    let items = syn::parse_file(&text).expect("the compiler takes it, too").items;
                    self.add(path, inside, Some(index), items, read)
                }
            };
            self.define(index, &name, Target::Module(child));
        }
        for item in &rest {
            if let Some(name) = defined(item) {
                self.define(index, &name, Target::Item);
            }
            let mut imports = Imports::default();
            imports.visit_item(item);
            for (name, path) in imports.names {
                self.define(index, &name, Target::Import(path));
            }
            self.modules[index].globs.extend(imports.globs);
        }
        self.modules[index].items = rest;
        index
    }

    fn define(&mut self, module: usize, name: &str, target: Target) {
        let names = &mut self.modules[module].names;
        names.entry(name.into()).or_default().push(target);
    }

    fn find_methods(&mut self) {
        let mut methods = BTreeMap::<_, BTreeSet<String>>::new();
        for (index, module) in self.modules.iter().enumerate() {
            for item in &module.items {
                let syn::Item::Impl(block) = item else { continue };
                let Some(of) = self
                    .type_of(index, &block.self_ty)
                    .filter(|_| block.trait_.is_none())
                else {
                    continue;
                };
                let names = block.items.iter().filter_map(|item| match item {
                    syn::ImplItem::Fn(function) => Some(function.sig.ident.to_string()),
                    syn::ImplItem::Const(constant) => Some(constant.ident.to_string()),
                    _ => None,
                });
                for name in names {
                    let files = methods.entry((of.clone(), name)).or_default();
                    files.insert(module.file.clone());
                }
            }
        }
        self.methods = methods;
    }

    /// The crate's type that a type names, if it does.
    fn type_of(&self, module: usize, named: &syn::Type) -> Option<Item> {
        let syn::Type::Path(named) = named else {
            return None;
        };
        let path = segments(&named.path);
        let mut found = self.resolve(module, &path).into_iter();
        found.find_map(|found| match found {
            Found::Item(item, None) => Some(item),
            _ => None,
        })
    }

    fn resolve(&self, module: usize, path: &[String]) -> Vec<Found> {
        self.resolve_unseen(module, path, &mut BTreeSet::new())
    }

    /// `seen` are the names that are being looked up: imports may go in circles.
    fn resolve_unseen(&self, module: usize, path: &[String], seen: &mut BTreeSet<Item>) -> Vec<Found> {
        let Some((first, rest)) = path.split_first() else {
            return vec![Found::Module(module)];
        };
        match first.as_str() {
            "crate" => self.resolve_unseen(0, rest, seen),
            "self" => self.resolve_unseen(module, rest, seen),
            "super" => match self.modules[module].parent {
                Some(parent) => self.resolve_unseen(parent, rest, seen),
                None => Vec::new(),
            },
            name => {
                let mut named = self.look_up(module, name, seen);
                // A function may be called like a module.
                if !rest.is_empty() && named.iter().any(|found| matches!(found, Found::Module(_))) {
                    named.retain(|found| matches!(found, Found::Module(_)));
                }
                let follow = |found| match found {
                    Found::Item(item, None) => vec![Found::Item(item, rest.first().cloned())],
                    Found::Module(inner) => self.resolve_unseen(inner, rest, seen),
                    found => vec![found],
                };
                named.into_iter().flat_map(follow).collect()
            }
        }
    }

    fn look_up(&self, module: usize, name: &str, seen: &mut BTreeSet<Item>) -> Vec<Found> {
        let item = (module, name.to_string());
        if !seen.insert(item.clone()) {
            return Vec::new();
        }
        let here = &self.modules[module];
        let mut found = Vec::new();
        for target in here.names.get(name).into_iter().flatten() {
            match target {
                Target::Item => found.push(Found::Item(item.clone(), None)),
                Target::Module(inner) => found.push(Found::Module(*inner)),
                Target::Import(path) => found.extend(self.resolve_unseen(module, path, seen)),
            }
        }
        for glob in here.globs.iter().filter(|_| !here.names.contains_key(name)) {
            let path: Vec<_> = glob.iter().cloned().chain([name.to_string()]).collect();
            found.extend(self.resolve_unseen(module, &path, seen));
        }
        seen.remove(&item);
        found
    }
}

/// What an item imports, also within functions.
#[derive(Default)]
struct Imports {
    names: Vec<(String, Vec<String>)>,
    globs: Vec<Vec<String>>,
}

impl Imports {
    fn of(item: &syn::ItemUse) -> Self {
        let mut imports = Self::default();
        imports.add(&item.tree, &mut Vec::new());
        imports
    }

    fn add(&mut self, tree: &syn::UseTree, path: &mut Vec<String>) {
        let mut name = |of: &syn::Ident, called: &syn::Ident| {
            let mut path = path.clone();
            // `use a::{self}` names `a`.
            let called = match (of == "self", path.last()) {
                (true, Some(last)) if called == "self" => last.clone(),
                (true, _) => called.to_string(),
                (false, _) => {
                    path.push(of.to_string());
                    called.to_string()
                }
            };
            self.names.push((called, path));
        };
        match tree {
            syn::UseTree::Path(tree) => {
                path.push(tree.ident.to_string());
                self.add(&tree.tree, path);
                path.pop();
            }
            syn::UseTree::Name(tree) => name(&tree.ident, &tree.ident),
            syn::UseTree::Rename(tree) => name(&tree.ident, &tree.rename),
            syn::UseTree::Glob(_) => self.globs.push(path.clone()),
            syn::UseTree::Group(tree) => tree.items.iter().for_each(|tree| self.add(tree, path)),
        }
    }
}

impl<'a> Visit<'a> for Imports {
    fn visit_item_use(&mut self, item: &'a syn::ItemUse) {
        let imports = Self::of(item);
        self.names.extend(imports.names);
        self.globs.extend(imports.globs);
    }
}

/// The code of one module: what it uses of other files.
struct Code<'c> {
    of: &'c Crate,
    module: usize,
    /// The type of the `impl` block around.
    own: Option<Item>,
    /// Variables of the function around: they hide items.
    bound: BTreeSet<String>,
    uses: BTreeMap<String, String>,
}

impl<'c> Code<'c> {
    fn new(of: &'c Crate, module: usize) -> Self {
        Self {
            of,
            module,
            own: None,
            bound: BTreeSet::new(),
            uses: BTreeMap::new(),
        }
    }

    fn name(&mut self, path: &[String]) {
        match path {
            [only] if self.bound.contains(only) => {}
            [first, rest @ ..] if first == "Self" => {
                if let (Some(own), Some(member)) = (self.own.clone(), rest.first()) {
                    self.name_member(&own, member);
                }
            }
            _ => {
                for found in self.of.resolve(self.module, path) {
                    let Found::Item(item, member) = found else {
                        continue;
                    };
                    self.note(&self.of.modules[item.0].file, path.join("::"));
                    if let Some(member) = member {
                        self.name_member(&item, &member);
                    }
                }
            }
        }
    }

    fn name_member(&mut self, item: &Item, member: &str) {
        let files = self.of.methods.get(&(item.clone(), member.to_string()));
        // A function that several files have is one under different conditions, of which one may be here.
        if let Some(files) = files.filter(|files| !files.contains(&self.of.modules[self.module].file)) {
            files
                .iter()
                .for_each(|file| self.note(file, format!("{}::{member}", item.1)));
        }
    }

    fn note(&mut self, file: &str, name: String) {
        if file != self.of.modules[self.module].file {
            self.uses.entry(file.into()).or_insert(name);
        }
    }

    /// Visits a function with its variables known.
    fn within(&mut self, variables: Variables, visit: impl FnOnce(&mut Self)) {
        let outside = std::mem::take(&mut self.bound);
        self.bound = &outside | &variables.0;
        visit(self);
        self.bound = outside;
    }
}

impl<'a> Visit<'a> for Code<'_> {
    fn visit_item(&mut self, item: &'a syn::Item) {
        if !is_test(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'a syn::ItemUse) {
        if matches!(item.vis, syn::Visibility::Inherited) {
            for (_, path) in Imports::of(item).names {
                self.name(&path);
            }
        }
    }

    fn visit_item_impl(&mut self, block: &'a syn::ItemImpl) {
        let own = self.of.type_of(self.module, &block.self_ty);
        let outside = std::mem::replace(&mut self.own, own);
        visit::visit_item_impl(self, block);
        self.own = outside;
    }

    fn visit_item_fn(&mut self, function: &'a syn::ItemFn) {
        let variables = Variables::of(|variables| variables.visit_item_fn(function));
        self.within(variables, |code| visit::visit_item_fn(code, function));
    }

    fn visit_impl_item_fn(&mut self, function: &'a syn::ImplItemFn) {
        if !is_test(&function.attrs) {
            let variables = Variables::of(|variables| variables.visit_impl_item_fn(function));
            self.within(variables, |code| visit::visit_impl_item_fn(code, function));
        }
    }

    fn visit_trait_item_fn(&mut self, function: &'a syn::TraitItemFn) {
        let variables = Variables::of(|variables| variables.visit_trait_item_fn(function));
        self.within(variables, |code| visit::visit_trait_item_fn(code, function));
    }

    fn visit_expr_method_call(&mut self, call: &'a syn::ExprMethodCall) {
        if let (syn::Expr::Path(receiver), Some(own)) = (&*call.receiver, self.own.clone())
            && receiver.path.is_ident("self")
        {
            self.name_member(&own, &call.method.to_string());
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        if path.leading_colon.is_none() {
            self.name(&segments(path));
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, called: &'a syn::Macro) {
        visit::visit_macro(self, called);
        scan(&called.tokens, &mut |named| match (named, self.own.clone()) {
            (Scanned::Path(path), _) => self.name(path),
            (Scanned::OfSelf(member), Some(own)) => self.name_member(&own, member),
            (Scanned::OfSelf(_), None) => {}
        });
    }
}

/// The variables of a function.
struct Variables(BTreeSet<String>);

impl Variables {
    fn of(visit: impl FnOnce(&mut Self)) -> Self {
        let mut variables = Self(BTreeSet::new());
        visit(&mut variables);
        variables
    }
}

impl<'a> Visit<'a> for Variables {
    fn visit_pat_ident(&mut self, pattern: &'a syn::PatIdent) {
        self.0.insert(pattern.ident.to_string());
        visit::visit_pat_ident(self, pattern);
    }
}

/// The paths that a file names, tests aside: as its imports complete them.
pub fn paths(text: &str) -> BTreeSet<String> {
    let file = syn::parse_file(text).expect("the compiler takes it, too");
    let mut paths = Paths::default();
    paths.visit_file(&file);
    let complete = |path: &Vec<String>| {
        let first = &path[0];
        let import = paths.imports.iter().find(|(name, _)| name == first);
        match import {
            Some((_, import)) if import.first() != Some(first) => [import, &path[1..]].concat().join("::"),
            _ => path.join("::"),
        }
    };
    paths.found.iter().map(complete).collect()
}

#[derive(Default)]
struct Paths {
    imports: Vec<(String, Vec<String>)>,
    found: Vec<Vec<String>>,
}

impl<'a> Visit<'a> for Paths {
    fn visit_item(&mut self, item: &'a syn::Item) {
        if !is_test(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'a syn::ItemUse) {
        let imports = Imports::of(item);
        self.found
            .extend(imports.names.iter().map(|(_, path)| path.clone()));
        self.found.extend(imports.globs);
        self.imports.extend(imports.names);
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        self.found.push(segments(path));
        visit::visit_path(self, path);
    }

    fn visit_token_stream(&mut self, tokens: &'a TokenStream) {
        scan(tokens, &mut |named| {
            if let Scanned::Path(path) = named {
                self.found.push(path.to_vec());
            }
        });
    }
}

enum Scanned<'s> {
    Path(&'s [String]),
    /// `self.member`
    OfSelf(&'s str),
}

/// Finds what tokens name that are not parsed, as those that a macro is given.
fn scan(tokens: &TokenStream, see: &mut dyn FnMut(Scanned)) {
    let mut path = Vec::<String>::new();
    let mut colons = 0;
    // Whether the next name is that of a field or method, and of `self`.
    let (mut member, mut of_self) = (false, false);
    for token in tokens.clone() {
        match token {
            TokenTree::Ident(name) if member => {
                if of_self {
                    see(Scanned::OfSelf(&name.to_string()));
                }
                (member, of_self) = (false, false);
            }
            TokenTree::Ident(name) => {
                if colons != 2 {
                    end(&mut path, see);
                }
                path.push(name.to_string());
                colons = 0;
            }
            TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
            TokenTree::Punct(punct) if punct.as_char() == '.' => {
                // Two points are a range.
                (member, of_self) = (!member, path == ["self"]);
                end(&mut path, see);
            }
            token => {
                if let TokenTree::Group(group) = &token {
                    scan(&group.stream(), see);
                }
                end(&mut path, see);
                (colons, member, of_self) = (0, false, false);
            }
        }
    }
    end(&mut path, see);
}

fn end(path: &mut Vec<String>, see: &mut dyn FnMut(Scanned)) {
    if !path.is_empty() {
        see(Scanned::Path(path));
    }
    path.clear();
}

fn segments(path: &syn::Path) -> Vec<String> {
    path.segments
        .iter()
        .map(|segment| segment.ident.to_string())
        .collect()
}

/// The name that an item defines.
fn defined(item: &syn::Item) -> Option<String> {
    let name = match item {
        syn::Item::Const(item) => &item.ident,
        syn::Item::Enum(item) => &item.ident,
        syn::Item::Fn(item) => &item.sig.ident,
        syn::Item::Macro(item) => item.ident.as_ref()?,
        syn::Item::Static(item) => &item.ident,
        syn::Item::Struct(item) => &item.ident,
        syn::Item::Trait(item) => &item.ident,
        syn::Item::TraitAlias(item) => &item.ident,
        syn::Item::Type(item) => &item.ident,
        syn::Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(name.to_string())
}

fn attributes(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Const(item) => &item.attrs,
        syn::Item::Enum(item) => &item.attrs,
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Static(item) => &item.attrs,
        syn::Item::Struct(item) => &item.attrs,
        syn::Item::Trait(item) => &item.attrs,
        syn::Item::Type(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Whether what has these attributes is there for tests alone.
fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        syn::Meta::Path(path) => path.is_ident("test"),
        syn::Meta::List(list) if list.path.is_ident("cfg") => {
            let words = list.tokens.to_string();
            let mut words = words.split(|c: char| !c.is_alphanumeric() && c != '_');
            words.clone().any(|word| word == "test") && !words.any(|word| word == "not")
        }
        _ => false,
    })
}
