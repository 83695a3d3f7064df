#include "program.h"

#include <stdexcept>

namespace {

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

std::vector<at::Tensor> ScriptProgram::run(std::vector<at::Tensor> inputs) {
  return tensors_of(module_.forward({inputs.begin(), inputs.end()}));
}

CompiledProgram::CompiledProgram(const std::string &path, int device, size_t calls)
    : loader_(path, "model", /*run_single_threaded=*/false, calls,
              static_cast<c10::DeviceIndex>(device)) {}

std::vector<at::Tensor> CompiledProgram::run(std::vector<at::Tensor> inputs) {
  return loader_.boxed_run(std::move(inputs));
}
