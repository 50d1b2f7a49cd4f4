// Muon over ranks. Each tensor of matrices has an owner, which makes them orthogonal for all:
//
//   each rank   updates its elements of the momentum
//   reduce      the owner gets the whole tensor     (stages 1 to 3, and shared weights)
//   owner       Newton-Schulz iterations
//   broadcast   each rank gets the result and updates its elements
//
// As many tensors as there are ranks are under way at a time.
#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <type_traits>

#include "weft/base/fault/failpoint.h"
#include "weft/engine/internal/whole_updates.h"
#include "weft/optim/muon.h"

namespace weft::engine::internal {
namespace {

// The matrices of a tensor, as optim/muon.h divides it: count, rows and columns.
std::array<std::int64_t, 3> matrices_of(at::IntArrayRef sizes) {
  if (sizes.size() == 3) return {sizes[0], sizes[1], sizes[2]};
  return {1, sizes[0], c10::multiply_integers(sizes) / sizes[0]};
}

// The polar factor of a matrix, about. The shorter side of X is that of X X'.
at::Tensor orthogonal(const at::Tensor& matrix) {
  const bool tall = matrix.size(0) > matrix.size(1);
  at::Tensor x = tall ? matrix.t().contiguous() : matrix;
  x = x / std::max(x.norm().item<double>(), 1e-7);
  const auto [a, b, c] = optim::kNewtonSchulz;
  for (int step = 0; step < optim::kNewtonSchulzSteps; ++step) {
    const at::Tensor gram = at::mm(x, x.t());
    x = at::addmm(x, at::addmm(gram, gram, gram, b, c), x, a, 1);
  }
  return (tall ? x.t() : x).contiguous();
}

class MuonUpdates final : public WholeUpdates {
 public:
  explicit MuonUpdates(Context context) : WholeUpdates(std::move(context)) {
    WEFT_REQUIRE(!is_split(),
                 "optimizer: muon does not support tensors that are divided over tp or ep");
    for (int param = 0; param < params(); ++param)
      is_matrix_.push_back(is_orthogonal(spec(), name(param), shape(param)));
  }

 protected:
  void apply(const WholeStep& now) override {
    std::map<int, WholePiece> of_matrices;
    for (const WholePiece& at : now.pieces) {
      if (is_matrix_[index(at.param)]) {
        of_matrices[at.param] = at;
      } else {
        update_plain(at);
      }
    }
    std::vector<int> round;
    for (int param = 0; param < params(); ++param) {
      if (!is_matrix_[index(param)] || !now.used[index(param)]) continue;
      round.push_back(param);
      if (static_cast<int>(round.size()) == group().size())
        update_matrices(std::exchange(round, {}), of_matrices);
    }
    update_matrices(round, of_matrices);
  }

 private:
  void update_plain(const WholePiece& at) {
    const auto muon = std::get<optim::Muon>(updates().rule(at.param));
    const UpdateRule adam = kernels::Adam{.lr = muon.lr * muon.adam_lr,
                                          .beta1 = muon.beta1,
                                          .beta2 = muon.beta2,
                                          .eps = muon.eps,
                                          .decoupled_decay = muon.weight_decay};
    in_blocks(at, Look::kBoth,
              [&](const auto& step, std::int64_t) { optim::update_flat(adam, step); });
  }

  // The tensor number i of `round` belongs to rank i.
  void update_matrices(const std::vector<int>& round, const std::map<int, WholePiece>& pieces) {
    std::vector<at::Tensor> matrices;
    for (std::size_t i = 0; i < round.size(); ++i) {
      matrices.push_back(momentum_of(round[i], pieces));
      if (is_divided()) group().reduce(matrices.back(), static_cast<int>(i));
    }
    const auto mine = static_cast<std::size_t>(group().rank());
    if (mine < matrices.size()) {
      const at::Tensor all = matrices[mine].view(matrices_of(shape(round[mine])));
      for (const at::Tensor& matrix : all.unbind()) matrix.copy_(orthogonal(matrix));
    }
    for (std::size_t i = 0; i < round.size(); ++i) {
      if (group().size() > 1) group().broadcast(matrices[i], static_cast<int>(i));
      const auto found = pieces.find(round[i]);
      if (found != pieces.end()) update_matrix(found->second, matrices[i]);
    }
  }

  // u of this rank's elements, and zeros elsewhere.
  at::Tensor momentum_of(int param, const std::map<int, WholePiece>& pieces) const {
    at::Tensor whole =
        at::zeros({c10::multiply_integers(shape(param))}, at::TensorOptions(updates().type(param)));
    const auto found = pieces.find(param);
    if (found == pieces.end()) return whole;
    const WholePiece& at = found->second;
    const auto rule = std::get<optim::Muon>(updates().rule(param));
    updates().visit(param, at.begin, at.end, at.gradient, [&](const auto& step) {
      using Number = std::remove_pointer_t<decltype(step.weight)>;
      optim::begin_step(rule, step, whole.data_ptr<Number>() + at.begin);
    });
    return whole;
  }

  void update_matrix(const WholePiece& at, const at::Tensor& whole) {
    const auto rule = std::get<optim::Muon>(updates().rule(at.param));
    const auto sizes = matrices_of(shape(at.param));
    const double rows = static_cast<double>(sizes[1]), columns = static_cast<double>(sizes[2]);
    in_blocks(at, Look::kBoth, [&](const auto& step, std::int64_t begin) {
      using Number = std::remove_pointer_t<decltype(step.weight)>;
      optim::end_step(rule, step, whole.const_data_ptr<Number>() + begin,
                      std::sqrt(std::max(1.0, rows / columns)));
    });
    failpoint("update.middle");
  }

  std::vector<bool> is_matrix_;  // by parameter
};

}  // namespace

std::unique_ptr<WholeUpdates> make_muon_updates(WholeUpdates::Context context) {
  return std::make_unique<MuonUpdates>(std::move(context));
}

}  // namespace weft::engine::internal
