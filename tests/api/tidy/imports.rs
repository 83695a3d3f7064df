//! Which file of a crate takes what from which, and where that goes in circles.
//!
//! Read are the `use` lines and paths of code that is no test. A name is traced to the file that defines
//! it, through others that pass it on. Two things are not imports: that a file declares another with
//! `mod`, and what a file takes from the one that it is declared in, or that one's: a folder's `mod.rs` may
//! hold what all of the folder is about.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};

/// A name's way to its definition is no longer.
const HOPS_MAX: usize = 8;

/// Files that import each other: from, to, and the names that are taken.
pub(super) type Circle = Vec<(String, String, BTreeSet<String>)>;

/// A module, by the names of those that it is in.
type Module = Vec<String>;

/// A name in a file, and the path that it stands for.
type Aliases = HashMap<String, Module>;

struct File {
    path: String,
    module: Module,
    /// What `use` brings into it; those of `*` have no name.
    aliases: Aliases,
    globs: Vec<Module>,
    /// All paths that begin in this crate: where they begin, and their segments.
    paths: Vec<Module>,
    /// Modules that are for tests alone.
    tests: Vec<Module>,
}

/// The circles of a crate whose sources are below `root`.
pub(super) fn circles(root: &str, sources: &[(PathBuf, String)]) -> Vec<Circle> {
    let modules: HashSet<Module> = sources.iter().map(|(path, _)| module_of(root, path)).collect();
    let read = |(path, text): &(PathBuf, String)| {
        Reader::new(module_of(root, path), &modules).read(path.display().to_string(), text)
    };
    let files: Vec<File> = sources.iter().map(read).collect();
    let tests: Vec<&Module> = files.iter().flat_map(|file| &file.tests).collect();
    let is_code = |file: &&File| !tests.iter().any(|test| file.module.starts_with(test));
    let files: Vec<&File> = files.iter().filter(is_code).collect();
    circles_of(&files, &imports(&files))
}

type Imports = BTreeMap<(usize, usize), BTreeSet<String>>;

fn imports(files: &[&File]) -> Imports {
    let mut found = Imports::new();
    for (at, file) in files.iter().enumerate() {
        for path in file.paths.iter().chain(file.aliases.values()).chain(&file.globs) {
            for (to, name) in defined(files, path, HOPS_MAX) {
                if to != at && !file.module.starts_with(&files[to].module) {
                    found.entry((at, to)).or_default().insert(name);
                }
            }
        }
    }
    found
}

/// Where the path leads: files, and the name that they define. A crate's library and its executable are
/// one module by name.
fn defined(files: &[&File], path: &[String], hops: usize) -> Vec<(usize, String)> {
    let longest = (0..=path.len()).rev().find(|len| files.iter().any(|f| f.module == path[..*len]));
    let Some(len) = longest else { return vec![] };
    let name = path.get(len).or(path.last()).cloned().unwrap_or_default();
    let homes = files.iter().enumerate().filter(|(_, file)| file.module == path[..len]);
    let lead = |(at, file): (usize, &&File)| match file.aliases.get(&name) {
        Some(alias) if len < path.len() && hops > 0 && alias.as_slice() != path => {
            defined(files, alias, hops - 1)
        }
        _ => vec![(at, name.clone())],
    };
    homes.flat_map(lead).collect()
}

/// Files that each lead to the other.
fn circles_of(files: &[&File], imports: &Imports) -> Vec<Circle> {
    let reached: Vec<BTreeSet<usize>> = (0..files.len()).map(|at| reach(at, imports)).collect();
    let mut seen = BTreeSet::new();
    let mut circles = vec![];
    for at in 0..files.len() {
        if !reached[at].contains(&at) || !seen.insert(at) {
            continue;
        }
        let circle: BTreeSet<usize> =
            reached[at].iter().copied().filter(|other| reached[*other].contains(&at)).collect();
        seen.extend(&circle);
        let within =
            imports.iter().filter(|((from, to), _)| circle.contains(from) && circle.contains(to));
        let named = |((from, to), names): (&(usize, usize), &BTreeSet<String>)| {
            (files[*from].path.clone(), files[*to].path.clone(), names.clone())
        };
        circles.push(within.map(named).collect());
    }
    circles
}

fn reach(from: usize, imports: &Imports) -> BTreeSet<usize> {
    let (mut found, mut open) = (BTreeSet::new(), vec![from]);
    while let Some(at) = open.pop() {
        let next = imports.range((at, 0)..=(at, usize::MAX)).map(|((_, to), _)| *to);
        open.extend(next.filter(|to| found.insert(*to)));
    }
    found
}

/// `src/flight/mod.rs` is `flight`; the roots are nothing.
fn module_of(root: &str, path: &Path) -> Module {
    let below = path.strip_prefix(root).unwrap().with_extension("");
    let mut module: Module = below.iter().map(|part| part.to_str().unwrap().to_owned()).collect();
    let last = module.last().map(String::as_str);
    if last == Some("mod") || (module.len() == 1 && matches!(last, Some("lib" | "main"))) {
        module.pop();
    }
    module
}

/// Reads the tokens of one file.
struct Reader<'a> {
    modules: &'a HashSet<Module>,
    /// The file's own module, and those with braces that are open, with the braces around them.
    inside: Module,
    braces: Vec<usize>,
    file: File,
}

impl<'a> Reader<'a> {
    fn new(module: Module, modules: &'a HashSet<Module>) -> Self {
        let file = File {
            path: String::new(),
            module: module.clone(),
            aliases: Aliases::new(),
            globs: vec![],
            paths: vec![],
            tests: vec![],
        };
        Self { modules, inside: module, braces: vec![], file }
    }

    fn read(mut self, path: String, text: &str) -> File {
        let tokens = tokens(text);
        let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
        let (mut at, mut depth) = (0, 0);
        while at < tokens.len() {
            match &tokens[at..] {
                ["#", "[", "cfg", "(", "test", ")", "]", ..] => {
                    at = self.skip_test(&tokens, at + 7);
                    continue;
                }
                ["mod", name, "{", ..] => {
                    self.inside.push((*name).to_owned());
                    self.braces.push(depth);
                }
                // Not the `use<'a>` of a type.
                ["use", next, ..] if *next != "<" => {
                    at = self.tree(&tokens, at + 1, vec![]);
                    continue;
                }
                ["{", ..] => depth += 1,
                ["}", ..] => {
                    depth -= 1;
                    if self.braces.pop_if(|brace| *brace == depth).is_some() {
                        self.inside.pop();
                    }
                }
                [_, "::", ..] if !is_inner(&tokens, at) => {
                    let (path, end) = plain_path(&tokens, at);
                    self.file.paths.extend(self.begun(&path));
                    at = end;
                    continue;
                }
                _ => {}
            }
            at += 1;
        }
        self.file.path = path;
        self.file
    }

    /// Behind the item that begins here; a module that is one is remembered.
    fn skip_test(&mut self, tokens: &[&str], from: usize) -> usize {
        let (mut at, mut depth) = (from, 0);
        while let Some(token) = tokens.get(at) {
            if let ["mod", name, ";"] = tokens[at..(at + 3).min(tokens.len())] {
                self.file.tests.push([self.inside.clone(), vec![name.to_owned()]].concat());
            }
            match *token {
                "{" | "[" | "(" => depth += 1,
                "}" | "]" | ")" => depth -= 1,
                _ => {}
            }
            at += 1;
            if depth == 0 && matches!(*token, ";" | "}") {
                break;
            }
        }
        at
    }

    /// A tree of `use`, and where it ends.
    fn tree(&mut self, tokens: &[&str], mut at: usize, mut path: Module) -> usize {
        loop {
            match &tokens[at..] {
                ["::", ..] => at += 1,
                ["{", ..] => {
                    at += 1;
                    while tokens[at] != "}" {
                        at = self.tree(tokens, at, path.clone());
                        at += usize::from(tokens[at] == ",");
                    }
                    return at + 1;
                }
                ["*", ..] => {
                    self.file.globs.extend(self.begun(&path));
                    return at + 1;
                }
                ["as", name, ..] => {
                    self.bring((*name).to_owned(), &path);
                    return at + 2;
                }
                ["self", ..] if !path.is_empty() => at += 1,
                [";" | "," | "}", ..] => {
                    let name = path.last().cloned().unwrap_or_default();
                    self.bring(name, &path);
                    return at;
                }
                [segment, ..] => {
                    path.push((*segment).to_owned());
                    at += 1;
                }
                [] => return at,
            }
        }
    }

    fn bring(&mut self, name: String, path: &[String]) {
        if let Some(path) = self.begun(path) {
            self.file.aliases.insert(name, path);
        }
    }

    /// The path from the crate's root, if it is one of this crate.
    fn begun(&self, path: &[String]) -> Option<Module> {
        let (first, rest) = path.split_first()?;
        let mut from = self.inside.clone();
        match first.as_str() {
            "crate" => from.clear(),
            "self" => {}
            "super" => drop(from.pop()),
            child => {
                from.push(child.to_owned());
                self.modules.contains(&from).then_some(())?;
            }
        }
        let up = rest.iter().take_while(|segment| *segment == "super").count();
        from.truncate(from.len().saturating_sub(up));
        Some([from, rest[up..].to_vec()].concat())
    }
}

/// Whether a path began before, or this is `pub(in …)`.
fn is_inner(tokens: &[&str], at: usize) -> bool {
    matches!(tokens[..at], [.., "::" | "."] | [.., "pub", "(", "in"])
}

fn plain_path(tokens: &[&str], mut at: usize) -> (Module, usize) {
    let mut path = vec![tokens[at].to_owned()];
    while let ["::", segment, ..] = &tokens[at + 1..]
        && segment.starts_with(|c: char| c.is_alphabetic() || c == '_')
    {
        path.push((*segment).to_owned());
        at += 2;
    }
    (path, at + 1)
}

/// Words and signs, without comments and texts.
fn tokens(text: &str) -> Vec<String> {
    let chars: Vec<char> = text.chars().collect();
    let is_word = |c: &char| c.is_alphanumeric() || *c == '_';
    let (mut found, mut at) = (vec![], 0);
    while let Some(c) = chars.get(at) {
        let next = chars.get(at + 1).copied().unwrap_or(' ');
        match c {
            '/' if next == '/' => at += chars[at..].iter().take_while(|c| **c != '\n').count(),
            '/' if next == '*' => at = behind(&chars, at + 2, "*/"),
            '"' => at = behind_text(&chars, at + 1),
            'r' | 'b' | 'c' if begins_raw(&chars, at) => at = behind_raw(&chars, at),
            // A lifetime has no second quote.
            '\'' if next == '\\' => at = behind(&chars, at + 3, "'"),
            '\'' if chars.get(at + 2) == Some(&'\'') => at += 3,
            ':' if next == ':' => {
                found.push("::".to_owned());
                at += 2;
            }
            c if is_word(c) => {
                let word: String = chars[at..].iter().copied().take_while(is_word).collect();
                at += word.chars().count();
                found.push(word);
            }
            c => {
                if !c.is_whitespace() {
                    found.push(c.to_string());
                }
                at += 1;
            }
        }
    }
    found
}

fn behind(chars: &[char], from: usize, end: &str) -> usize {
    let end: Vec<char> = end.chars().collect();
    let rest = chars.get(from..).unwrap_or_default();
    let found = rest.windows(end.len()).position(|window| window == end);
    found.map_or(chars.len(), |at| from + at + end.len())
}

fn behind_text(chars: &[char], mut at: usize) -> usize {
    while let Some(c) = chars.get(at) {
        match c {
            '\\' => at += 2,
            '"' => return at + 1,
            _ => at += 1,
        }
    }
    at
}

/// `r"`, `r#"`, `br"`, and not a word that begins so.
fn begins_raw(chars: &[char], at: usize) -> bool {
    let is_begun = at > 0 && (chars[at - 1].is_alphanumeric() || chars[at - 1] == '_');
    let rest: String = chars[at..].iter().take(4).collect();
    let rest = rest.strip_prefix(['b', 'c']).unwrap_or(&rest);
    let raw = rest.strip_prefix('r').map(|rest| rest.trim_start_matches('#'));
    !is_begun && raw.is_some_and(|rest| rest.starts_with('"'))
}

fn behind_raw(chars: &[char], at: usize) -> usize {
    let quote = chars[at..].iter().position(|c| *c == '"').unwrap_or_default();
    let hashes = chars[at..at + quote].iter().filter(|c| **c == '#').count();
    behind(chars, at + quote + 1, &format!("\"{}", "#".repeat(hashes)))
}

fn circles_in(files: &[(&str, &str)]) -> Vec<Vec<String>> {
    let source = |(path, text): &(&str, &str)| (PathBuf::from(path), (*text).to_owned());
    let found = circles("src", &files.iter().map(source).collect::<Vec<_>>());
    let shown = |(from, to, names): &(String, String, BTreeSet<String>)| {
        format!("{from} {to} {}", names.iter().cloned().collect::<Vec<_>>().join(" "))
    };
    found.iter().map(|circle| circle.iter().map(shown).collect()).collect()
}

#[test]
fn circles_are_found_by_where_names_are_defined() {
    let direct = [("src/a.rs", "use crate::b::B;"), ("src/b.rs", "fn f() { super::a::g::<B>(); }")];
    assert_eq!(circles_in(&direct), [["src/a.rs src/b.rs B", "src/b.rs src/a.rs g"]]);
    let through = [
        ("src/a.rs", "use crate::f::{inner::{self, X as Y}, Z};"),
        ("src/f/mod.rs", "mod inner; mod z; pub use z::Z;"),
        ("src/f/inner.rs", "pub struct X;"),
        ("src/f/z.rs", "use crate::a::A;"),
    ];
    assert_eq!(circles_in(&through), [["src/a.rs src/f/z.rs Z", "src/f/z.rs src/a.rs A"]]);
}

#[test]
fn what_is_no_import_makes_no_circle() {
    let quoted = r##"//! use crate::b::B;
        /* crate::b::B */ const T: &str = "crate::b::B \" crate::b::B"; const R: &str = r#"crate::b"#;
        pub(in crate::b) fn f<'a>() -> impl Fn() + use<'a> { 'x'; '\''; crate::c::f() }"##;
    let tests = "#[cfg(test)]\nmod tests { use crate::b::B; }\n#[cfg(test)]\nuse crate::b::{B};";
    let b = ("src/b.rs", "use crate::a::A;");
    for text in [quoted, tests] {
        assert_eq!(circles_in(&[("src/a.rs", text), b]), [[""; 0]; 0], "{text}");
    }
    let parent = [("src/a/mod.rs", "mod b; use b::B; struct A;"), ("src/a/b.rs", "use super::A;")];
    assert_eq!(circles_in(&parent), [[""; 0]; 0]);
    let for_tests = [("src/a.rs", ""), b, ("src/lib.rs", "#[cfg(test)]\nmod b; mod a;")];
    assert_eq!(circles_in(&for_tests), [[""; 0]; 0]);
}
