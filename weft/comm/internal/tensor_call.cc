#include "weft/comm/internal/tensor_call.h"

#include <optional>
#include <string>

#include "weft/comm/internal/tensor_data.h"

namespace weft::comm::internal {
namespace {

using schedule::Collective;

bool works_in_place(Collective collective) {
  return collective == Collective::kAllReduce || collective == Collective::kBroadcast;
}

// True if the output is a block of the call.
bool is_part(Collective collective) {
  return collective == Collective::kReduceScatter || collective == Collective::kScatter;
}

// Elements as in schedule::Request::count.
std::int64_t count_of(const TensorCall& call, const Dense* input, const Dense* output, int world) {
  switch (call.collective) {
    case Collective::kReduceScatter:
    case Collective::kScatter: return output->count();
    case Collective::kAllGather:
    case Collective::kGather:
    case Collective::kReduce: return input->count();
    case Collective::kAllToAll: return input->count() / world;
    default: return (output != nullptr ? output : input)->count();
  }
}

void require_length(const schedule::Request& call, const char* side, const Dense& data,
                    std::int64_t needed) {
  WEFT_REQUIRE(data.count() == needed,
               std::string(schedule::to_string(call.collective)) + ": the " + side + " has " +
                   std::to_string(data.bytes()) + " bytes, expected " +
                   std::to_string(static_cast<std::size_t>(needed) * size_of(data.dtype())));
}

// True if the engine may run on memory that input and output share: one array for both, or a block
// of the longer one that only this rank reads.
bool may_share(const schedule::Request& call, const Dense& input, const Dense& output) {
  const std::byte* const in = input.memory().data();
  const std::byte* const out = output.memory().data();
  const auto rank = static_cast<std::size_t>(call.rank);
  switch (call.collective) {
    case Collective::kReduce: return in == out;
    case Collective::kAllGather:
    case Collective::kGather: return in == out + rank * input.bytes();
    case Collective::kReduceScatter:
    case Collective::kScatter: return out == in + rank * output.bytes();
    default: return false;
  }
}

}  // namespace

void run_call(Engine& engine, const TensorCall& call) {
  const bool in_place = works_in_place(call.collective);
  const int world = engine.endpoint().world();
  std::optional<Dense> input, output;
  if (call.input.defined()) input.emplace(call.input, Dense::kIn);
  if (call.output.defined()) output.emplace(call.output, in_place ? Dense::kInOut : Dense::kOut);
  const Dense& data = output ? *output : *input;
  const at::Tensor& shown = input && !is_part(call.collective) ? call.input : call.output;
  const schedule::Request shape{
      .collective = call.collective,
      .rank = engine.endpoint().rank(),
      .world = world,
      .root = call.root,
      .count = count_of(call, input ? &*input : nullptr, output ? &*output : nullptr, world)};
  if (input && output)
    require_same_type(schedule::to_string(call.collective), call.output, call.input);
  if (input && !in_place) require_length(shape, "input", *input, schedule::input_count(shape));
  if (output && !in_place) require_length(shape, "output", *output, schedule::output_count(shape));
  if (reduces(call.collective)) require_reduction(shown, call.op);
  if (input && output && overlap(input->memory(), output->memory()) &&
      !may_share(shape, *input, *output))
    input->copy_memory();
  net::DirectArgs args{.input = input ? input->data() : nullptr,
                       .output = output ? output->data() : nullptr,
                       .count = shape.count,
                       .dtype = data.dtype(),
                       .op = call.op,
                       .root = call.root,
                       .timeout = call.timeout,
                       .shape = shown.sizes().data(),
                       .dims = static_cast<int>(shown.dim()),
                       .width = data.width(),
                       .more = call.more};
  if (in_place) args.input = args.output = data.data();
  engine.run(call.collective, args);
  if (output) output->write_back();
}

}  // namespace weft::comm::internal
