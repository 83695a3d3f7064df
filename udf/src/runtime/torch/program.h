// A model's program, in either of the formats that libtorch runs. Part of libforebay_torch.so; called by
// shim.cpp.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/script.h>

// Calls from several threads are independent.
class Program {
public:
  Program() = default;
  Program(const Program &) = delete;
  Program &operator=(const Program &) = delete;
  virtual ~Program() = default;

  // Its results, in order.
  virtual std::vector<at::Tensor> run(std::vector<at::Tensor> inputs) = 0;

  // The same of rows without padding, by all arguments but the mask.
  virtual std::vector<at::Tensor> run_without_mask(std::vector<at::Tensor> inputs);
  // Whether it has a method for that.
  virtual bool can_do_without_mask() const { return false; }

  // For passes over its graph; null if it is compiled.
  virtual torch::jit::Module *module() { return nullptr; }
};

// TorchScript: a graph that libtorch interprets.
class ScriptProgram : public Program {
public:
  explicit ScriptProgram(torch::jit::Module module) : module_(std::move(module)) {}
  std::vector<at::Tensor> run(std::vector<at::Tensor> inputs) override;
  std::vector<at::Tensor> run_without_mask(std::vector<at::Tensor> inputs) override;
  bool can_do_without_mask() const override;
  torch::jit::Module *module() override { return &module_; }

private:
  torch::jit::Module module_;
};

// AOTInductor: native code for one kind of device, with its weights, in a file of PyTorch's.
class CompiledProgram : public Program {
public:
  // For a device by its ordinal, or -1 for the CPU, and so many calls at the same time; more wait.
  CompiledProgram(const std::string &path, int device, size_t calls);
  std::vector<at::Tensor> run(std::vector<at::Tensor> inputs) override;

private:
  torch::inductor::AOTIModelPackageLoader loader_;
};
