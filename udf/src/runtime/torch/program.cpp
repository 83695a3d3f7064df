#include "program.h"

#include <stdexcept>

namespace {

// docs/model-packages.md says what it must do.
constexpr const char *kWithoutMask = "without_mask";

std::vector<at::Tensor> tensors_of(const c10::IValue &result) {
  if (result.isTensor()) return {result.toTensor()};
  if (result.isTensorList()) return result.toTensorVector();
  if (!result.isTuple()) {
    throw std::runtime_error("the program returned " + result.tagKind() +
                             " instead of a tensor or a tuple of tensors");
  }
  std::vector<at::Tensor> tensors;
  for (const c10::IValue &element : result.toTupleRef().elements()) {
    tensors.push_back(element.toTensor());
  }
  return tensors;
}

} // namespace

std::vector<at::Tensor> Program::run_without_mask(std::vector<at::Tensor>) {
  throw std::runtime_error("the program has no method for rows without padding");
}

std::vector<at::Tensor> ScriptProgram::run(std::vector<at::Tensor> inputs) {
  return tensors_of(module_.forward({inputs.begin(), inputs.end()}));
}

std::vector<at::Tensor> ScriptProgram::run_without_mask(std::vector<at::Tensor> inputs) {
  return tensors_of(module_.get_method(kWithoutMask)({inputs.begin(), inputs.end()}));
}

bool ScriptProgram::can_do_without_mask() const {
  return module_.find_method(kWithoutMask).has_value();
}

CompiledProgram::CompiledProgram(const std::string &path, int device, size_t calls)
    : loader_(path, "model", /*run_single_threaded=*/false, calls,
              static_cast<c10::DeviceIndex>(device)) {}

std::vector<at::Tensor> CompiledProgram::run(std::vector<at::Tensor> inputs) {
  // It was compiled for tensors whose last dimension is the densest, and does not look: pixels come as channels
  // that are side by side.
  for (at::Tensor &input : inputs) input = input.contiguous();
  return loader_.boxed_run(std::move(inputs));
}
