#include "weft/parallel/compose/internal/composition.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <set>
#include <utility>

#include "weft/base/text/words.h"
#include "weft/comm/texts.h"
#include "weft/parallel/compose/internal/on_device.h"
#include "weft/parallel/compose/internal/passes.h"

namespace weft::parallel::internal {
namespace {

Plan as_it_runs(Plan plan, const Mesh& mesh) {
  plan.micro_batches = micro_batches(plan, mesh.layout());
  plan.device = with_index(plan.device);
  return plan;
}

}  // namespace

const Parameter* Stage::find(const std::string& own) const {
  const auto found = std::find_if(parameters.begin(), parameters.end(),
                                  [&](const Parameter& p) { return p.own == own; });
  return found == parameters.end() ? nullptr : &*found;
}

std::vector<at::Tensor> Stage::tied_weights() const {
  std::vector<at::Tensor> all;
  std::set<const c10::TensorImpl*> known;
  for (const Block& block : blocks) {
    for (const auto& [name, tensor] : block.tied) {
      if (known.insert(tensor.unsafeGetTensorImpl()).second) all.push_back(tensor);
    }
  }
  return all;
}

Composition::Composition(BlockModel model_, Plan plan_, const Mesh& mesh_)
    : model(std::move(model_)),
      plan(as_it_runs(std::move(plan_), mesh_)),
      mesh(mesh_),
      rule(plan.optimizer.rule) {
  WEFT_REQUIRE(!model.blocks.empty() && model.loss,
               "parallelize: the model needs a block and a loss");
}

void Composition::abort(const Error& error) const {
  for (const char* axis : {"pp", "tp", "dp", "fsdp", "cp", "ep"}) mesh[axis].abort(error);
  for (const Group* group :
       {&replicas(), &sharers(), &copies(), &copies_of_experts(), &same_blocks(), &mesh.world()})
    group->abort(error);
  if (pipeline) pipeline->abort(error);
  for (const Stage& stage : stages) {
    if (stage.sharded) stage.sharded->abandon(error.message());
  }
}

checkpoint::Rectangle Composition::place_of(const Parameter& p) const {
  checkpoint::Rectangle place{p.whole, p.sizes, std::vector<std::int64_t>(p.sizes.size(), 0),
                              p.sizes};
  const auto cut = [&](const Slice& slice, const TensorParallel& over) {
    const auto dim = static_cast<std::size_t>(slice.dim);
    place.sizes[dim] = slice.part(over.size());
    place.offset[dim] = over.rank() * place.sizes[dim];
  };
  if (p.slice) cut(*p.slice, contexts.tp);
  if (p.expert) cut(*p.expert, along_ep());
  return place;
}

engine::Sharded::Placing Composition::placing_of(const Stage& stage) const {
  return [this, &stage](const std::string& own) { return place_of(*stage.find(own)); };
}

void Composition::try_on_all_ranks(const std::string& operation,
                                   const std::function<void()>& body) const {
  const Group& world = mesh.world();
  std::string mine;  // a letter for the code, and the text; empty: no error
  try {
    body();
  } catch (const std::exception& error) {
    const Error own = as_error(error);
    mine = static_cast<char>('a' + static_cast<int>(own.code())) + own.message();
  }
  const auto all = guarded([&] { return comm::all_gather_texts(world, mine); });
  const auto refuse = [&](int rank) {
    const std::string& text = all[static_cast<std::size_t>(rank)];
    const auto code = static_cast<Errc>(text[0] - 'a');
    if (rank == world.rank())
      throw Error(code, operation + ": " + text.substr(1), {operation, rank});
    throw Error(code == Errc::kInvalidArgument ? code : Errc::kAborted,
                operation + ": rank " + std::to_string(rank) + " failed: " + text.substr(1),
                {operation, world.rank(), rank});
  };
  if (!mine.empty()) refuse(world.rank());
  for (int rank = 0; rank < world.size(); ++rank) {
    if (!all[static_cast<std::size_t>(rank)].empty()) refuse(rank);
  }
}

double Composition::max_norm() const {
  return left_out(*this, "clip") ? 0 : plan.optimizer.max_grad_norm;
}

void Composition::wait_for_weights() {
  for (Stage& stage : stages) {
    if (stage.sharded) stage.sharded->wait_for_weights();
  }
}

namespace {

// "Float[16, 2], Long[16]".
std::string described(const Tensors& tensors) {
  std::vector<std::string> texts;
  for (const at::Tensor& tensor : tensors)
    texts.push_back(std::string(c10::toString(tensor.scalar_type())) + "[" +
                    joined(tensor.sizes()) + "]");
  return joined(texts);
}

}  // namespace

Error in_plain_words(const std::string& what, const Tensors& inputs, const c10::Error& error) {
  const std::string where = what + " of " + described(inputs) + ": ";
  if (code_of(error) == Errc::kUnavailable) return {Errc::kUnavailable, where + describe(error)};
  const std::string text = error.what_without_backtrace(),
                    cause = engine::cause_in_batch_norm(
                        text, "Plan::sync_batch_norm, or model.sync_batch_norm in a recipe");
  return {Errc::kInvalidArgument,
          where + (cause.empty() ? text.substr(0, text.find('\n')) : cause)};
}

}  // namespace weft::parallel::internal
