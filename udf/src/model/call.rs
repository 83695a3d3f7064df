//! What the options of a call may change of a model: less than those of whoever owns it.

use super::declaration::ModelDeclaration;
use super::options::ModelOptions;
use crate::error::ModelError;

impl ModelDeclaration {
    /// With the options of a call. Whoever may query makes calls, so a call does not allow native code to a model
    /// whose owner has not.
    ///
    /// # Errors
    /// As [`with_options`](Self::with_options).
    pub fn with_call_options(self, options: &ModelOptions) -> Result<Self, ModelError> {
        if options.allow_native == Some(true) && self.allow_native != Some(true) {
            return Err(ModelError::InvalidValue {
                option: "allow_native".to_owned(),
                value: "true".to_owned(),
                expected: format!(
                    "false, as a call does not allow native code; who may change models does: ALTER MODEL {} \
                     SET ('allow_native' = 'true')",
                    self.name
                ),
            });
        }
        self.with_options(options)
    }
}
