// As libtorch was compiled: what it tells of a call is laid out otherwise without.
#ifndef NDEBUG
#define NDEBUG
#endif

#include "operations.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string_view>

#include <ATen/record_function.h>

namespace {

using Inputs = c10::ArrayRef<const c10::IValue>;

// Of the calling thread's running count.
thread_local double operations = 0;

const at::Tensor &tensor(Inputs inputs, size_t at) { return inputs[at].toTensor(); }

// [.., m, k] x [.., k, n]
double of_product(const at::Tensor &left, const at::Tensor &right) {
  const int64_t columns = right.dim() < 2 ? 1 : right.size(-1);
  return 2.0 * static_cast<double>(left.numel()) * static_cast<double>(columns);
}

// Of input, weight, bias, stride, padding, dilation, transposed, …: one product for each weight and place.
double of_convolution(Inputs inputs) {
  const at::Tensor &input = tensor(inputs, 0), &weight = tensor(inputs, 1);
  const double per_place =
      static_cast<double>(weight.numel()) / static_cast<double>(std::max<int64_t>(1, weight.size(0)));
  if (inputs[6].toBool()) return 2.0 * static_cast<double>(input.numel()) * per_place;
  const auto stride = inputs[3].toIntVector(), padding = inputs[4].toIntVector();
  const auto dilation = inputs[5].toIntVector();
  const auto side_of = [](const std::vector<int64_t> &sides, size_t side) {
    return sides.size() == 1 ? sides[0] : sides.at(side);
  };
  double places = static_cast<double>(input.size(0)) * static_cast<double>(weight.size(0));
  for (int64_t dim = 2; dim < weight.dim(); dim++) {
    const size_t side = static_cast<size_t>(dim - 2);
    const int64_t reach = side_of(dilation, side) * (weight.size(dim) - 1) + 1;
    const int64_t room = input.size(dim) + 2 * side_of(padding, side) - reach;
    places *= static_cast<double>(room / side_of(stride, side) + 1);
  }
  return 2.0 * places * per_place;
}

// [.., queries, k] x [.., keys, k], and as much again by the values.
double of_attention(Inputs inputs) {
  const at::Tensor &query = tensor(inputs, 0), &key = tensor(inputs, 1), &value = tensor(inputs, 2);
  const double pairs = static_cast<double>(query.numel()) / static_cast<double>(query.size(-1)) *
                       static_cast<double>(key.size(-2));
  return 2.0 * pairs * static_cast<double>(query.size(-1) + value.size(-1));
}

// Operations that call no other one of these.
double operations_of(std::string_view name, Inputs inputs) {
  using Count = std::function<double(Inputs)>;
  const auto product = [](size_t left, size_t right) -> Count {
    return [=](Inputs in) { return of_product(tensor(in, left), tensor(in, right)); };
  };
  static const std::map<std::string_view, Count> counts = {
      {"aten::mm", product(0, 1)},
      {"aten::bmm", product(0, 1)},
      {"aten::mv", product(0, 1)},
      {"aten::addmm", product(1, 2)},
      {"aten::baddbmm", product(1, 2)},
      {"aten::addmv", product(1, 2)},
      // Weights of a layer, [n, k]; the one that adds has what it adds in front of them.
      {"mkldnn::_linear_pointwise",
       [](Inputs in) {
         const at::Tensor &weight = tensor(in, in.size() == 5 ? 2 : 1);
         return 2.0 * static_cast<double>(tensor(in, 0).numel()) *
                static_cast<double>(weight.size(0));
       }},
      // And how many outputs the layer has.
      {"forebay::blocks",
       [](Inputs in) { return 2.0 * static_cast<double>(tensor(in, 0).numel()) * static_cast<double>(in[1].toInt()); }},
      {"aten::_scaled_dot_product_flash_attention_for_cpu", of_attention},
      {"forebay::heads", of_attention},
      {"aten::_convolution", of_convolution},
  };
  const auto found = counts.find(name);
  return found == counts.end() ? 0 : found->second(inputs);
}

std::unique_ptr<at::ObserverContext> count_call(const at::RecordFunction &call) {
  // What is thrown here, libtorch writes to the terminal for each call.
  try {
    operations += operations_of(call.name(), call.inputs());
  } catch (const std::exception &) {
    operations = NAN;
  }
  return nullptr;
}

// Counts while it lives.
class Counting {
public:
  Counting()
      : handle_(at::addThreadLocalCallback(at::RecordFunctionCallback(count_call)
                                               .needsInputs(true)
                                               .scopes({at::RecordScope::FUNCTION}))) {
    operations = 0;
  }
  ~Counting() { at::removeCallback(handle_); }
  Counting(const Counting &) = delete;
  Counting &operator=(const Counting &) = delete;

private:
  at::CallbackHandle handle_;
};

} // namespace

double counted_operations(Program &program, std::vector<at::Tensor> inputs) {
  const Counting counting;
  program.run(std::move(inputs));
  if (std::isnan(operations)) throw std::runtime_error("an operation of the program is not known");
  return operations;
}
