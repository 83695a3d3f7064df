#include "linear.h"

#include "attention.h"
#include "linear_blocks.h"
#include "linear_kernels.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include <ATen/Parallel.h>
#include <torch/csrc/jit/ir/alias_analysis.h>
#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/passes/dead_code_elimination.h>
#include <torch/csrc/jit/passes/freeze_module.h>
#include <torch/csrc/jit/passes/remove_dropout.h>
#include <torch/library.h>

namespace {

using torch::jit::Block;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;
using OptionalTensor = std::optional<at::Tensor>;
using blocks::Follower;

// Whether oneDNN computes in bfloat16 on this machine, if only by emulation.
bool has_bf16() {
  static const bool has = c10::Dispatcher::singleton()
                              .findSchemaOrThrow("mkldnn::_is_mkldnn_bf16_supported", "")
                              .typed<bool()>()
                              .call();
  return has;
}

bool is_plain(const at::Tensor &tensor) {
  if (!tensor.defined() || tensor.layout() != at::kStrided || !tensor.device().is_cpu()) return false;
  const at::ScalarType type = tensor.scalar_type();
  return (type == at::kFloat || (type == at::kBFloat16 && has_bf16())) && tensor.numel() > 0;
}

at::Tensor pack(const at::Tensor &weight) {
  using Pack = at::Tensor(const at::Tensor &, std::optional<int64_t>);
  static const auto pack = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("mkldnn::_reorder_linear_weight", "")
                               .typed<Pack>();
  return pack.call(weight.contiguous(), std::nullopt);
}

// Whether oneDNN computes the layer for this input as aten::linear does.
bool takes(const at::Tensor &input, const at::Tensor &packed) {
  return is_plain(input) && input.scalar_type() == packed.scalar_type() && input.dim() >= 2 &&
         input.size(-1) == packed.size(1);
}

// What takes a linear layer's place in a program, with the activation behind it. Inputs that oneDNN would
// refuse, or would read otherwise than aten::linear does, go there.
at::Tensor linear(const at::Tensor &input, const at::Tensor &packed, const OptionalTensor &bias,
                  std::string_view activation, std::string_view algorithm) {
  using Scalars = c10::List<std::optional<at::Scalar>>;
  using Pointwise = at::Tensor(const at::Tensor &, const at::Tensor &, const OptionalTensor &,
                               std::string_view, Scalars, std::optional<std::string_view>);
  static const auto pointwise = c10::Dispatcher::singleton()
                                    .findSchemaOrThrow("mkldnn::_linear_pointwise", "")
                                    .typed<Pointwise>();
  // oneDNN's own ReLU makes zeros of what is not a number.
  const bool is_relu = activation == "relu";
  if (takes(input, packed)) {
    at::Tensor output =
        pointwise.call(input, packed, bias, is_relu ? "none" : activation, Scalars(), algorithm);
    return is_relu ? at::relu_(output) : output;
  }
  at::Tensor output = at::linear(input, packed.to_dense(), bias);
  if (is_relu) return at::relu_(output);
  if (activation == "gelu") return at::gelu(output, algorithm);
  return activation == "tanh" ? at::tanh(output) : output;
}

// What takes the place of a linear layer and of what is added to its output.
at::Tensor linear_plus(const at::Tensor &input, const at::Tensor &packed, const OptionalTensor &bias,
                       const at::Tensor &added) {
  using Binary = at::Tensor(const at::Tensor &, const at::Tensor &, const at::Tensor &,
                            const OptionalTensor &, std::string_view);
  static const auto binary = c10::Dispatcher::singleton()
                                 .findSchemaOrThrow("mkldnn::_linear_pointwise", "binary")
                                 .typed<Binary>();
  std::vector<int64_t> sizes = input.sizes().vec();
  if (takes(input, packed)) sizes.back() = packed.size(0);
  if (takes(input, packed) && is_plain(added) && added.scalar_type() == input.scalar_type() &&
      added.is_contiguous() && added.sizes() == sizes) {
    return binary.call(input, added, packed, bias, "add");
  }
  return at::add(linear(input, packed, bias, "none", ""), added);
}

// What a batch is measured with: enough that packing the weights anew, which MKL does, weighs as little
// as in a batch of a thousand tokens.
constexpr int64_t kRows = 256;

// Seconds. Of the calling thread alone if it computes alone: whoever else wants its core does not count.
double seconds_now() {
  timespec now = {};
  clock_gettime(at::get_num_threads() == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// The same in libtorch's words; nothing for an addition.
std::string_view activation_of(Follower follower) {
  switch (follower) {
  case Follower::Relu: return "relu";
  case Follower::Gelu: return "gelu";
  case Follower::Tanh: return "tanh";
  default: return "none";
  }
}

at::Tensor by_mkl(const at::Tensor &input, const at::Tensor &weight, const at::Tensor &bias,
                  Follower follower, const at::Tensor &added) {
  at::Tensor output = at::linear(input, weight, bias);
  switch (follower) {
  case Follower::None: return output;
  case Follower::Addition: return at::add(output, added);
  case Follower::Relu: return at::relu(output);
  case Follower::Gelu: return at::gelu(output);
  case Follower::Tanh: return at::tanh(output);
  }
  return output;
}

// What may be faster than MKL here.
Kernels other_than_mkl(const at::Tensor &weight) {
  return blocks::are_faster(weight.size(1)) ? Kernels::Blocks : Kernels::OneDnn;
}

at::Tensor packed_for(Kernels kernels, const at::Tensor &weight) {
  return kernels == Kernels::Blocks ? blocks::pack(weight) : pack(weight);
}

at::Tensor by_others(Kernels kernels, const at::Tensor &input, const at::Tensor &packed, const at::Tensor &bias,
                     Follower follower, const at::Tensor &added) {
  const bool is_sum = follower == Follower::Addition;
  const std::string_view activation = activation_of(follower), algorithm = follower == Follower::Gelu ? "none" : "";
  if (kernels == Kernels::Blocks) {
    const int64_t outputs = bias.size(0);
    return is_sum ? blocks::linear_plus(input, packed, outputs, bias, added)
                  : blocks::linear(input, packed, outputs, bias, activation, algorithm);
  }
  return is_sum ? linear_plus(input, packed, bias, added) : linear(input, packed, bias, activation, algorithm);
}

// Seconds that one batch takes with aten::linear and with others, and with what follows the layer, which these
// compute on the way: the least of several rounds, as what else runs on the machine only adds to them.
std::array<double, 2> measured_seconds(const at::Tensor &weight, Follower follower) {
  constexpr int kRounds = 4;
  const at::Tensor input = at::ones({kRows, weight.size(1)});
  const at::Tensor bias = at::zeros({weight.size(0)});
  const at::Tensor added = at::zeros({kRows, weight.size(0)});
  const Kernels other = other_than_mkl(weight);
  const at::Tensor packed = packed_for(other, weight);
  std::array<double, 2> least = {HUGE_VAL, HUGE_VAL};
  for (int round = 0; round < kRounds; round++) {
    for (size_t side = 0; side < least.size(); side++) {
      const double start = seconds_now();
      side == 0 ? by_mkl(input, weight, bias, follower, added)
                : by_others(other, input, packed, bias, follower, added);
      least[side] = std::min(least[side], seconds_now() - start);
    }
  }
  return least;
}

// How much faster MKL has to be. It looks better for a few rows than it is for many on all cores: with AVX2 it was up to
// 1.2 times as fast here as oneDNN's layers and 0.7 to 1.2 with 1,024 rows, and a query took 1.05 and 1.16 times as long
// with it.
constexpr double kMklGain = 1.2;

// Inputs, outputs, threads and what follows, and what computes layers of them.
using Shape = std::tuple<int64_t, int64_t, int64_t, Follower>;
using Choices = std::map<Shape, Kernels>;

// What is known in this process. Whoever measures holds the lock: models that are loaded at the same time
// would measure each other.
struct Known {
  std::mutex mutex;
  Choices choices;
};

Known &known() {
  static Known known;
  return known;
}

// So many of a layer's outputs cost about a millisecond. They are as many as kernels like to have: with a rest of a
// few, one library would be measured by what it does with these.
int64_t outputs_to_measure(const at::Tensor &weight) {
  constexpr int64_t kProducts = 40'000'000, kBlock = 64;
  const int64_t blocks = kProducts / kRows / weight.size(1) / kBlock;
  return std::min(weight.size(0), std::max<int64_t>(2, blocks) * kBlock);
}

// What is known of layers of the same sides, whatever follows them, or else of most layers.
std::optional<Kernels> likely(const Shape &shape, const Choices &choices) {
  const auto [inputs, outputs, threads, follower] = shape;
  std::map<Kernels, int> counts;
  for (const auto &[of, kernels] : choices) {
    if (std::get<2>(of) != threads) continue;
    if (std::get<0>(of) == inputs && std::get<1>(of) == outputs) return kernels;
    counts[kernels]++;
  }
  if (counts.empty()) return std::nullopt;
  const auto fewer = [](const auto &one, const auto &other) { return one.second < other.second; };
  return std::max_element(counts.begin(), counts.end(), fewer)->first;
}

// What computes layers of a shape fastest. Measured once; of a shape whose turn comes late it is what is likely, and the
// next process measures it.
Kernels fastest(const at::Tensor &weight, Follower follower, double deadline, Choices &choices) {
  const int64_t outputs = outputs_to_measure(weight);
  const Shape shape = {weight.size(1), outputs, at::get_num_threads(), follower};
  auto found = choices.find(shape);
  if (found == choices.end()) {
    if (seconds_now() > deadline) return likely(shape, choices).value_or(Kernels::Mkl);
    const auto [mkl, other] = measured_seconds(weight.narrow(0, 0, outputs), follower);
    found = choices.emplace(shape, other < kMklGain * mkl ? other_than_mkl(weight) : Kernels::Mkl).first;
  }
  return found->second;
}

// A linear layer of a program.
struct Layer {
  Node *node;
  at::Tensor weight;
  // Computed with the layer: an activation or an addition.
  Node *follower = nullptr;
  Kernels kernels = Kernels::OneDnn;
};

bool is_addition(const Node *node) { return node->kind() == c10::aten::add; }

// As in "aten::tanh_".
std::string activation_name(const Node *node) {
  std::string name = node->kind().toUnqualString();
  if (name.back() == '_') name.pop_back();
  return name;
}

Follower kind_of(const Node *follower) {
  if (!follower) return Follower::None;
  if (is_addition(follower)) return Follower::Addition;
  const std::string name = activation_name(follower);
  // Approximated, not every kernel has it.
  if (name == "gelu" && torch::jit::toIValue(follower->input(1))->toStringRef() != "none") return Follower::None;
  for (const Follower kind : {Follower::Relu, Follower::Gelu, Follower::Tanh}) {
    if (name == activation_of(kind)) return kind;
  }
  return Follower::None;
}

// In bfloat16 it is oneDNN in any case.
void choose_fastest(std::vector<Layer> &layers) {
  if (layers.empty()) return;
  const std::lock_guard<std::mutex> lock(known().mutex);
  // The first products set up the libraries, which would otherwise be measured with the first shape.
  const at::Tensor first = at::ones({16, 16}), bias = at::zeros({16});
  by_mkl(first, first, bias, Follower::None, first);
  const Kernels other = other_than_mkl(first);
  by_others(other, first, packed_for(other, first), bias, Follower::None, first);
  const double deadline = seconds_now() + 0.035;
  for (Layer &layer : layers) {
    if (layer.weight.scalar_type() != at::kFloat) continue;
    layer.kernels = fastest(layer.weight, kind_of(layer.follower), deadline, known().choices);
    // Measured when the CPU was allowed more.
    if (layer.kernels == Kernels::Blocks && !blocks::are_known()) layer.kernels = Kernels::OneDnn;
  }
}

void choose(std::vector<Layer> &layers, Kernels wanted) {
  const bool are_blocks = wanted == Kernels::Blocks && blocks::are_known();
  for (Layer &layer : layers) {
    layer.kernels = are_blocks && layer.weight.scalar_type() == at::kFloat ? Kernels::Blocks : Kernels::OneDnn;
  }
}

void each_node(Block *block, const std::function<void(Node *)> &visit) {
  for (Node *node : block->nodes()) {
    visit(node);
    for (Block *inner : node->blocks()) each_node(inner, visit);
  }
  visit(block->return_node());
}

at::Tensor constant_tensor(const Value *value) {
  const auto constant = torch::jit::toIValue(value);
  return constant && constant->isTensor() ? constant->toTensor() : at::Tensor();
}

bool is_packable(const Node *node) {
  if (node->kind() != c10::aten::linear) return false;
  const at::Tensor weight = constant_tensor(node->input(1));
  if (!is_plain(weight) || weight.dim() != 2) return false;
  if (node->input(2)->type()->kind() == c10::TypeKind::NoneType) return true;
  const at::Tensor bias = constant_tensor(node->input(2));
  return is_plain(bias) && bias.scalar_type() == weight.scalar_type() && bias.is_contiguous() &&
         bias.sizes() == weight.sizes().slice(0, 1);
}

// Layers with constant weights that nothing else reads: packed, they take the place of the original.
std::vector<Layer> packable_layers(Graph &graph) {
  std::vector<Layer> layers;
  std::set<const void *> read_elsewhere;
  each_node(graph.block(), [&](Node *node) {
    const bool is_layer = is_packable(node);
    if (is_layer) layers.push_back({node, constant_tensor(node->input(1))});
    for (size_t i = 0; i < node->inputs().size(); i++) {
      const at::Tensor tensor = constant_tensor(node->input(i));
      if (tensor.defined() && tensor.has_storage() && !(is_layer && i == 1)) {
        read_elsewhere.insert(tensor.storage().unsafeGetStorageImpl());
      }
    }
  });
  const auto is_shared = [&](const Layer &layer) {
    return read_elsewhere.count(layer.weight.storage().unsafeGetStorageImpl()) > 0;
  };
  layers.erase(std::remove_if(layers.begin(), layers.end(), is_shared), layers.end());
  return layers;
}

// Two tensors of which neither is multiplied first.
bool is_plain_addition(const Node *node) {
  if (!is_addition(node) || node->inputs().size() != 3) return false;
  const auto is_tensor = [&](size_t i) {
    return node->input(i)->type()->kind() == c10::TypeKind::TensorType;
  };
  const auto factor = torch::jit::toIValue(node->input(2));
  return is_tensor(0) && is_tensor(1) && factor && factor->isInt() && factor->toInt() == 1;
}

// The activation or addition that alone reads a layer's output.
Node *follower_of(Node *layer) {
  const auto uses = layer->output()->uses();
  if (uses.size() != 1 || uses[0].user->owningBlock() != layer->owningBlock()) return nullptr;
  static const std::set<std::string_view> activations = {
      "aten::gelu", "aten::gelu_", "aten::tanh", "aten::tanh_", "aten::relu", "aten::relu_"};
  Node *user = uses[0].user;
  if (is_addition(user)) return is_plain_addition(user) ? user : nullptr;
  if (activations.count(user->kind().toQualString()) == 0) return nullptr;
  // The approximation of GELU.
  const bool is_known = user->inputs().size() < 2 || torch::jit::toIValue(user->input(1));
  return is_known ? user : nullptr;
}

c10::Symbol operation_of(Kernels kernels, bool is_sum) {
  const std::string name = kernels == Kernels::Blocks ? "forebay::linear_blocks" : "forebay::linear";
  return c10::Symbol::fromQualString(is_sum ? name + "_plus" : name);
}

// The layer and what follows it, as one operation.
Value *insert_fused(Graph &graph, const Layer &layer, Value *packed) {
  std::vector<torch::jit::NamedValue> inputs = {layer.node->input(0), packed};
  if (layer.kernels == Kernels::Blocks) inputs.emplace_back(layer.weight.size(0));
  inputs.emplace_back(layer.node->input(2));
  const bool is_sum = layer.follower && is_addition(layer.follower);
  if (is_sum) {
    const bool is_first = layer.follower->input(0) == layer.node->output();
    inputs.emplace_back(layer.follower->input(is_first ? 1 : 0));
    return graph.insert(operation_of(layer.kernels, is_sum), inputs);
  }
  std::string activation = "none", algorithm;
  if (layer.follower) {
    activation = activation_name(layer.follower);
    if (activation == "gelu") algorithm = torch::jit::toIValue(layer.follower->input(1))->toStringRef();
  }
  inputs.emplace_back(activation);
  inputs.emplace_back(algorithm);
  return graph.insert(operation_of(layer.kernels, is_sum), inputs);
}

void replace(Graph &graph, const Layer &layer, const at::Tensor &weight) {
  Node *last = layer.follower ? layer.follower : layer.node;
  Node *original = layer.node->input(1)->node();
  const torch::jit::WithInsertPoint before(last);
  // The kind of constant whose layout no pass of libtorch looks into.
  Node *packed = graph.insertNode(graph.create(c10::prim::ConstantMKLDNNTensor));
  packed->t_(c10::attr::value, weight);
  last->output()->replaceAllUsesWith(insert_fused(graph, layer, packed->output()));
  if (layer.follower) layer.follower->destroy();
  layer.node->destroy();
  // At once, so that never more than one weight is there twice.
  if (!original->hasUses()) original->destroy();
}

// What follows a layer may stand further down, with changes of what the layer reads in between: these are
// moved behind it where that makes no difference.
void find_followers(const std::shared_ptr<Graph> &graph, std::vector<Layer> &layers) {
  torch::jit::AliasDb aliases(graph);
  // Two layers may be added to each other.
  std::set<Node *> taken;
  for (Layer &layer : layers) {
    Node *follower = follower_of(layer.node);
    if (!follower || taken.count(follower) > 0) continue;
    if (!aliases.moveBeforeTopologicallyValid(layer.node, follower)) continue;
    layer.follower = follower;
    taken.insert(follower);
  }
}

// Layers may have a weight in common.
using WeightKey = std::tuple<const void *, int64_t, int64_t, int64_t>;

WeightKey key_of(const at::Tensor &weight) {
  return {weight.const_data_ptr(), weight.size(0), weight.size(1), weight.stride(0)};
}

struct Packed {
  at::Tensor tensor;
  Kernels kernels = Kernels::OneDnn;
};

} // namespace

TORCH_LIBRARY(forebay, library) {
  library.def("linear(Tensor input, Tensor packed, Tensor? bias, str activation, str algorithm)"
              " -> Tensor",
              linear);
  library.def("linear_plus(Tensor input, Tensor packed, Tensor? bias, Tensor added) -> Tensor",
              linear_plus);
}

PackedLayers pack_linear_layers(torch::jit::Module &module, std::optional<Kernels> wanted) {
  if (!at::hasMKLDNN() || wanted == Kernels::Mkl) return {};
  const torch::NoGradGuard no_grad;
  torch::jit::Module frozen = torch::jit::freeze_module(module);
  // It does nothing any more, but stands between layers and what is added to their output.
  torch::jit::removeDropout(frozen);
  const std::shared_ptr<Graph> graph = frozen.get_method("forward").graph();
  std::vector<Layer> layers = packable_layers(*graph);
  find_followers(graph, layers);
  wanted ? choose(layers, *wanted) : choose_fastest(layers);
  const auto stays = [](const Layer &layer) { return layer.kernels == Kernels::Mkl; };
  layers.erase(std::remove_if(layers.begin(), layers.end(), stays), layers.end());
  PackedLayers done;
  done.attentions = replace_attention(*graph);
  if (layers.empty() && done.attentions == 0) return {};
  // Its owner has the original weights as well.
  module = std::move(frozen);
  std::map<WeightKey, Packed> packed;
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> originals;
  while (!layers.empty()) {
    Layer layer = std::move(layers.back());
    layers.pop_back();
    Packed &weight = packed[key_of(layer.weight)];
    if (!weight.tensor.defined()) {
      weight = {packed_for(layer.kernels, layer.weight), layer.kernels};
      originals.push_back(layer.weight.storage().getWeakStorageImpl());
    }
    layer.kernels = weight.kernels;
    done.layers++;
    const bool is_sum = layer.follower && is_addition(layer.follower);
    done.sums += is_sum;
    done.activations += layer.follower && !is_sum;
    replace(*graph, layer, weight.tensor);
  }
  torch::jit::EliminateDeadCode(graph);
  done.weights = static_cast<int64_t>(packed.size());
  done.twice = std::count_if(originals.begin(), originals.end(),
                             [](const auto &original) { return !original.expired(); });
  return done;
}

std::vector<LinearChoice> linear_choices() {
  const std::lock_guard<std::mutex> lock(known().mutex);
  std::vector<LinearChoice> choices;
  for (const auto &[shape, kernels] : known().choices) {
    const auto [inputs, outputs, threads, follower] = shape;
    choices.push_back({inputs, outputs, threads, static_cast<int64_t>(follower), kernels});
  }
  return choices;
}

void remember_linear_choice(const LinearChoice &choice) {
  const std::lock_guard<std::mutex> lock(known().mutex);
  const Shape shape = {choice.inputs, choice.outputs, choice.threads,
                       static_cast<Follower>(choice.follower)};
  known().choices.emplace(shape, choice.kernels);
}
