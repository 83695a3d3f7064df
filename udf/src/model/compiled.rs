//! Programs as native code: what each is for, and which of them fits a device.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::options::Precision;
use crate::error::{ModelError, quoted};

/// A program of a package as native code, for one kind of device.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Compiled {
    /// File in the package.
    pub program: String,
    /// The devices that have its instructions.
    pub architecture: Architecture,
    /// What it computes in; there is no other.
    #[serde(default)]
    pub precision: Precision,
    /// The release of PyTorch that made it, without which it does not run.
    pub torch: String,
}

/// Whose instructions native code is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Architecture {
    /// CPUs whose vectors are at least so wide.
    Cpu(Vectors),
    /// NVIDIA GPUs of exactly this compute capability.
    Cuda {
        /// Its first number.
        major: u16,
        /// Its second one, of one digit.
        minor: u16,
    },
}

/// The vectors of CPUs, as PyTorch tells them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Vectors {
    /// What every CPU has.
    Plain,
    /// 256 bits.
    Avx2,
    /// 512 bits.
    Avx512,
}

impl Architecture {
    /// Whether a device of this architecture runs code for `other`.
    fn runs(self, other: Self) -> bool {
        match (self, other) {
            (Self::Cpu(has), Self::Cpu(needs)) => has >= needs,
            _ => self == other,
        }
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu(Vectors::Plain) => f.write_str("cpu"),
            Self::Cpu(Vectors::Avx2) => f.write_str("cpu-avx2"),
            Self::Cpu(Vectors::Avx512) => f.write_str("cpu-avx512"),
            Self::Cuda { major, minor } => write!(f, "sm_{major}{minor}"),
        }
    }
}

impl FromStr for Architecture {
    type Err = ModelError;

    fn from_str(text: &str) -> Result<Self, ModelError> {
        match text {
            "cpu" => return Ok(Self::Cpu(Vectors::Plain)),
            "cpu-avx2" => return Ok(Self::Cpu(Vectors::Avx2)),
            "cpu-avx512" => return Ok(Self::Cpu(Vectors::Avx512)),
            _ => {}
        }
        let digits = text.strip_prefix("sm_").filter(|digits| (2..=4).contains(&digits.len()));
        let number = digits.and_then(|digits| digits.parse::<u16>().ok());
        let found = number.map(|number| Self::Cuda { major: number / 10, minor: number % 10 });
        // Signs and leading zeros are digits of nothing.
        found.filter(|found| found.to_string() == text).ok_or_else(|| ModelError::InvalidValue {
            option: "architecture".to_owned(),
            value: quoted(text).into_owned(),
            expected: "cpu, cpu-avx2, cpu-avx512, or a GPU's such as sm_90".to_owned(),
        })
    }
}

impl TryFrom<String> for Architecture {
    type Error = ModelError;

    fn try_from(text: String) -> Result<Self, ModelError> {
        text.parse()
    }
}

impl From<Architecture> for String {
    fn from(value: Architecture) -> Self {
        value.to_string()
    }
}

/// `2.11.0` of `2.11.0+cu130`: builds of one release run the same code.
fn release(version: &str) -> &str {
    version.split_once('+').map_or(version, |(release, _)| release)
}

impl Compiled {
    /// Why it does not run on a device of this architecture by this PyTorch in this precision, if so.
    fn why_not(&self, on: Architecture, torch: &str, precision: Precision) -> Option<String> {
        let Self { program, architecture, torch: made_by, .. } = self;
        if !on.runs(*architecture) {
            return Some(format!("{program} is for {architecture}, this device is {on}"));
        }
        if self.precision != precision {
            return Some(format!(
                "{program} is in {}, the model runs in {precision}",
                self.precision
            ));
        }
        if release(made_by) != release(torch) {
            let (made_by, torch) = (quoted(made_by), release(torch));
            return Some(format!("{program} is of torch {made_by}, here is {torch}"));
        }
        None
    }

    /// The one of these that a device of this architecture runs best.
    ///
    /// # Errors
    /// Why it runs none.
    pub fn choose<'a>(
        among: &'a [Self],
        on: Architecture,
        torch: &str,
        precision: Precision,
    ) -> Result<&'a Self, String> {
        let why_not = |one: &&Self| one.why_not(on, torch, precision);
        let fitting = among.iter().filter(|one| why_not(one).is_none());
        fitting.max_by_key(|one| one.architecture).ok_or_else(|| {
            let reasons: Vec<String> = among.iter().filter_map(|one| why_not(&one)).collect();
            reasons.join("; ")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compiled(architecture: &str, precision: Precision, torch: &str) -> Compiled {
        let architecture = architecture.parse().unwrap();
        let program = format!("{architecture}-{precision}.pt2");
        Compiled { program, architecture, precision, torch: torch.to_owned() }
    }

    fn chosen(among: &[Compiled], on: &str, precision: Precision) -> Result<String, String> {
        let on = on.parse().unwrap();
        let found = Compiled::choose(among, on, "2.11.0+cu130", precision);
        found.map(|found| found.program.clone())
    }

    #[test]
    fn an_architecture_is_one_of_those_that_devices_have() {
        for text in ["cpu", "cpu-avx2", "cpu-avx512", "sm_75", "sm_90", "sm_103", "sm_120"] {
            assert_eq!(text.parse::<Architecture>().unwrap().to_string(), text);
        }
        for text in ["", "avx2", "CPU", "sm_", "sm_9", "sm_+90", "sm_090", "sm_90a", "sm_99999"] {
            let error = text.parse::<Architecture>().unwrap_err().to_string();
            assert!(error.contains("or a GPU's such as sm_90"), "{error}");
        }
    }

    #[test]
    fn the_widest_vectors_that_the_cpu_has_are_taken() {
        let all: Vec<Compiled> = ["cpu-avx512", "cpu", "sm_90", "cpu-avx2"]
            .map(|architecture| compiled(architecture, Precision::Fp32, "2.11.0"))
            .into();
        for (on, found) in [
            ("cpu", "cpu-fp32.pt2"),
            ("cpu-avx2", "cpu-avx2-fp32.pt2"),
            ("cpu-avx512", "cpu-avx512-fp32.pt2"),
            ("sm_90", "sm_90-fp32.pt2"),
        ] {
            assert_eq!(chosen(&all, on, Precision::Fp32), Ok(found.to_owned()));
        }
    }

    #[test]
    fn what_does_not_fit_says_why() {
        let all = [
            compiled("sm_90", Precision::Bf16, "2.11.0"),
            compiled("cpu-avx512", Precision::Fp32, "2.11.0"),
            compiled("cpu-avx2", Precision::Fp32, "2.12.0"),
            compiled("cpu-avx2", Precision::Bf16, "2.11.0"),
        ];
        assert_eq!(
            chosen(&all, "cpu-avx2", Precision::Fp32).unwrap_err(),
            "sm_90-bf16.pt2 is for sm_90, this device is cpu-avx2; cpu-avx512-fp32.pt2 is for \
             cpu-avx512, this device is cpu-avx2; cpu-avx2-fp32.pt2 is of torch 2.12.0, here is 2.11.0; \
             cpu-avx2-bf16.pt2 is in bf16, the model runs in fp32"
        );
        // Code for a GPU runs on those of its own capability alone.
        for gpu in ["sm_80", "sm_100", "sm_89"] {
            assert!(chosen(&all, gpu, Precision::Bf16).is_err());
        }
        assert!(chosen(&[], "cpu", Precision::Fp32).is_err());
    }
}
