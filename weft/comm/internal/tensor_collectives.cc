#include "weft/comm/internal/tensor_collectives.h"

#include <ATen/ATen.h>

#include "weft/comm/internal/tensor_call.h"
#include "weft/comm/internal/tensor_data.h"

namespace weft::comm::internal {

using schedule::Collective;
using std::chrono::milliseconds;

namespace {

constexpr net::Channel kSplitChannel = net::Channel{1} << 60;

}  // namespace

void all_reduce(Engine& engine, const at::Tensor& tensor, const c10d::ReduceOp& op,
                milliseconds timeout, std::size_t more) {
  if (op.op_ == c10d::ReduceOp::PREMUL_SUM) tensor.copy_(premultiplied(tensor, op));
  run_call(engine, {.collective = Collective::kAllReduce,
                    .output = tensor,
                    .op = reduce_op(op),
                    .timeout = timeout,
                    .more = static_cast<int>(more)});
}

void all_reduce_sparse(Engine& engine, const at::Tensor& tensor, milliseconds timeout) {
  const int size = engine.endpoint().world();
  const at::Tensor mine = tensor.coalesce();
  const at::Tensor indices = mine.indices(), values = mine.values();
  std::vector<int64_t> facts{indices.size(0), mine.dense_dim()};
  facts.insert(facts.end(), mine.sizes().begin(), mine.sizes().end());
  facts.push_back(indices.size(1));
  const at::Tensor own = at::tensor(facts, at::kLong),
                   all = at::empty({size, own.numel()}, at::kLong);
  all_gather(engine, all, own, timeout);
  const auto shape_length = own.numel() - 1;
  WEFT_REQUIRE(all.narrow(1, 0, shape_length).eq(own.narrow(0, 0, shape_length)).all().item<bool>(),
               "all_reduce of sparse tensors: the ranks' shapes differ");
  const at::Tensor counts = all.select(1, shape_length);
  const int64_t longest = counts.max().item<int64_t>();
  auto value_shape = values.sizes().vec();
  value_shape[0] = longest;
  at::Tensor padded_indices = at::zeros({longest, indices.size(0)}, indices.options());
  at::Tensor padded_values = at::zeros(value_shape, values.options());
  padded_indices.narrow(0, 0, indices.size(1)).copy_(indices.t());
  padded_values.narrow(0, 0, indices.size(1)).copy_(values);
  value_shape[0] *= size;
  const at::Tensor all_indices = at::empty({size * longest, indices.size(0)}, indices.options());
  const at::Tensor all_values = at::empty(value_shape, values.options());
  all_gather(engine, all_indices, padded_indices, timeout);
  all_gather(engine, all_values, padded_values, timeout);
  Tensors kept_indices, kept_values;
  for (int peer = 0; peer < size; ++peer) {
    const int64_t count = counts[peer].item<int64_t>();
    kept_indices.push_back(all_indices.narrow(0, peer * longest, count));
    kept_values.push_back(all_values.narrow(0, peer * longest, count));
  }
  tensor.copy_(
      at::sparse_coo_tensor(at::cat(kept_indices).t(), at::cat(kept_values), tensor.sizes())
          .coalesce());
}

void reduce(Engine& engine, const at::Tensor& output, const at::Tensor& input,
            const c10d::ReduceOp& op, int root, milliseconds timeout) {
  run_call(engine, {.collective = Collective::kReduce,
                    .input = premultiplied(input, op),
                    .output = output,
                    .op = reduce_op(op),
                    .root = root,
                    .timeout = timeout});
}

void all_gather(Engine& engine, const at::Tensor& output, const at::Tensor& input,
                milliseconds timeout, std::size_t more) {
  run_call(engine, {.collective = Collective::kAllGather,
                    .input = input,
                    .output = output,
                    .timeout = timeout,
                    .more = static_cast<int>(more)});
}

void all_gather_list(Engine& engine, const Tensors& outputs, const at::Tensor& input,
                     milliseconds timeout, std::size_t more) {
  const int size = engine.endpoint().world();
  const at::Tensor flat = at::empty({size, input.numel()}, input.options());
  all_gather(engine, flat, input, timeout, more);
  for (std::size_t peer = 0; peer < outputs.size(); ++peer)
    outputs[peer].copy_(flat[static_cast<int64_t>(peer)].view(outputs[peer].sizes()));
}

void reduce_scatter(Engine& engine, const at::Tensor& output, const at::Tensor& input,
                    const c10d::ReduceOp& op, milliseconds timeout, std::size_t more) {
  run_call(engine, {.collective = Collective::kReduceScatter,
                    .input = premultiplied(input, op),
                    .output = output,
                    .op = reduce_op(op),
                    .timeout = timeout,
                    .more = static_cast<int>(more)});
}

void all_to_all_uneven(Engine& engine, const Tensors& outputs, const Tensors& inputs,
                       milliseconds timeout) {
  const Tensors own = apart_from(outputs, inputs);
  std::vector<Dense> in, out;
  std::vector<net::Send> sends;
  std::vector<net::Recv> recvs;
  for (int peer = 0; peer < engine.endpoint().world(); ++peer) {
    in.emplace_back(own[static_cast<std::size_t>(peer)], Dense::kIn);
    out.emplace_back(outputs[static_cast<std::size_t>(peer)], Dense::kOut);
    sends.push_back({peer, {static_cast<const std::byte*>(in.back().data()), in.back().bytes()}});
    recvs.push_back({peer, {static_cast<std::byte*>(out.back().data()), out.back().bytes()}});
  }
  engine.run(Collective::kAllToAll, {.dtype = out.front().dtype(),
                                     .timeout = timeout,
                                     .dims = net::kPartSizes,
                                     .width = out.front().width()});
  engine.endpoint().exchange(kSplitChannel, sends, recvs, Deadline::in(timeout));
  for (const auto& tensor : out) tensor.write_back();
}

}  // namespace weft::comm::internal
