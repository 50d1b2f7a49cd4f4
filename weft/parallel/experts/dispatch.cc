#include "weft/parallel/experts/dispatch.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "weft/base/error.h"

namespace weft::parallel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Counts = std::vector<std::int64_t>;

std::int64_t sum(const Counts& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

Counts to_counts(const at::Tensor& tensor) {
  const at::Tensor here = tensor.to(at::kCPU, at::kLong).contiguous();
  const auto* const values = here.const_data_ptr<std::int64_t>();
  return {values, values + here.numel()};
}

at::Tensor exchange(const at::Tensor& x, const Counts& send, const Counts& receive,
                    const Group& group) {
  at::Tensor in = x.contiguous();
  std::vector<std::int64_t> sizes = in.sizes().vec(), from = receive, to = send;
  sizes[0] = sum(receive);
  at::Tensor out = at::empty(sizes, in.options().requires_grad(false));
  c10d::AllToAllOptions options;
  options.asyncOp = false;
  const Group::Work work = group.backend().alltoall_base(out, in, from, to, options);
  if (work) work->wait();
  return out;
}

// Values that backward needs.
struct DispatchTerms final : torch::CustomClassHolder {
  DispatchTerms(ExpertParallel ep_, Counts send_, Counts receive_)
      : ep(std::move(ep_)), send(std::move(send_)), receive(std::move(receive_)) {}
  ExpertParallel ep;
  Counts send, receive;
};

struct Exchange final : torch::autograd::Function<Exchange> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const c10::intrusive_ptr<DispatchTerms>& terms) {
    context->saved_data["terms"] = c10::IValue::make_capsule(terms);
    return exchange(x, terms->send, terms->receive, terms->ep.group());
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto terms =
        c10::static_intrusive_pointer_cast<DispatchTerms>(context->saved_data["terms"].toCapsule());
    return {exchange_rows(gradients[0], terms->receive, terms->send, terms->ep), {}};
  }
};

at::Tensor reordered(const at::Tensor& rows, const at::Tensor& order) {
  return order.defined() ? rows.index_select(0, order) : rows;
}

}  // namespace

at::Tensor exchange_rows(const at::Tensor& x, const Counts& send, const Counts& receive,
                         const ExpertParallel& ep) {
  const auto ranks = static_cast<std::size_t>(ep.size());
  WEFT_REQUIRE(
      x.dim() >= 1 && send.size() == ranks && receive.size() == ranks && sum(send) == x.size(0),
      "exchange_rows: send and receive need one count for each of the " + std::to_string(ranks) +
          " ranks, and send must sum to the " + std::to_string(x.dim() >= 1 ? x.size(0) : 0) +
          " rows");
  return ranks == 1 ? x : Exchange::apply(x, c10::make_intrusive<DispatchTerms>(ep, send, receive));
}

void ExpertLoad::add(const ExpertLoad& more) {
  wanted.resize(more.wanted.size());
  dropped.resize(more.dropped.size());
  std::transform(more.wanted.begin(), more.wanted.end(), wanted.begin(), wanted.begin(),
                 std::plus<>());
  std::transform(more.dropped.begin(), more.dropped.end(), dropped.begin(), dropped.begin(),
                 std::plus<>());
  tokens += more.tokens;
}

double ExpertLoad::dropped_share() const {
  const std::int64_t all = sum(wanted);
  return all == 0 ? 0 : static_cast<double>(sum(dropped)) / static_cast<double>(all);
}

double ExpertLoad::imbalance() const {
  const std::int64_t all = sum(wanted);
  if (all == 0) return 1;
  return static_cast<double>(*std::max_element(wanted.begin(), wanted.end())) *
         static_cast<double>(wanted.size()) / static_cast<double>(all);
}

Dispatch::Dispatch(const Routing& routing, const ExpertParallel& ep)
    : ep_(ep),
      tokens_(routing.experts.size(0)),
      top_k_(routing.experts.size(1)),
      experts_(routing.probabilities.size(1)) {
  even_part("experts", experts_, ep.size());
  const at::NoGradGuard no_grad;
  order_choices(routing);
  // [ranks, (choices per expert; kept choices per expert; tokens)]
  const at::Tensor flat = routing.experts.reshape({-1}), wanted = at::bincount(flat, {}, experts_);
  const at::Tensor kept =
      routing.kept.defined() ? at::bincount(flat.index_select(0, choices_), {}, experts_) : wanted;
  const at::Tensor mine = at::cat({wanted, kept, at::full({1}, tokens_, wanted.options())});
  at::Tensor all = mine.unsqueeze(0);
  if (ep.size() > 1) {
    all = at::empty({ep.size(), mine.numel()}, mine.options());
    ep.group().all_gather(all, mine);
  }
  all = all.cpu();
  const at::Tensor total = all.sum(0);
  load_.wanted = to_counts(total.narrow(0, 0, experts_));
  load_.dropped = to_counts(total.narrow(0, 0, experts_) - total.narrow(0, experts_, experts_));
  load_.tokens = total[2 * experts_].item<std::int64_t>();
  order_arrivals(all.narrow(1, experts_, experts_));
}

void Dispatch::order_choices(const Routing& routing) {
  const at::Tensor flat = routing.experts.reshape({-1});
  choices_ = at::argsort(flat, /*stable=*/true, 0, /*descending=*/false);
  if (routing.kept.defined())
    choices_ = choices_.masked_select(routing.kept.reshape({-1}).index_select(0, choices_));
}

// counts: rows from each rank to each expert.
void Dispatch::order_arrivals(const at::Tensor& counts) {
  const std::int64_t ranks = ep_.size(), part = experts_ / ranks;
  send_ = to_counts(counts[ep_.rank()].view({ranks, part}).sum(1));
  const at::Tensor theirs = counts.narrow(1, ep_.rank() * part, part);  // [ranks, part]
  receive_ = to_counts(theirs.sum(1));
  rows_of_expert_ = to_counts(theirs.sum(0));
  if (ranks == 1 || part == 1) return;
  const at::Tensor expert =
      at::arange(part, counts.options()).repeat({ranks}).repeat_interleave(theirs.reshape({-1}));
  const at::Tensor order = at::argsort(expert, /*stable=*/true, 0, /*descending=*/false);
  at::Tensor back = at::empty_like(order);
  back.index_copy_(0, order, at::arange(order.numel(), order.options()));
  arrivals_ = order.to(choices_.device());
  departures_ = back.to(choices_.device());
}

at::Tensor Dispatch::send(const at::Tensor& x) const {
  WEFT_REQUIRE(x.dim() == 2 && x.size(0) == tokens_,
               "Dispatch: x must be [" + std::to_string(tokens_) + " tokens, width]");
  const at::Tensor rows = x.index_select(0, choices_.div(top_k_, "floor"));
  return reordered(exchange_rows(rows, send_, receive_, ep_), arrivals_);
}

at::Tensor Dispatch::combine(const at::Tensor& rows, const at::Tensor& weights) const {
  const at::Tensor mine = exchange_rows(reordered(rows, departures_), receive_, send_, ep_);
  const at::Tensor weighted = mine * weights.reshape({-1, 1}).index_select(0, choices_);
  return at::zeros({tokens_, weighted.size(1)}, weighted.options().requires_grad(false))
      .index_add(0, choices_.div(top_k_, "floor"), weighted);
}

}  // namespace weft::parallel
