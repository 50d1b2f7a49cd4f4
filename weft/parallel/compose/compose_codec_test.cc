// Codecs for gradients between the replicas of any plan.
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "weft/base/file.h"
#include "weft/base/testing/refusal.h"
#include "weft/checkpoint/reader.h"
#include "weft/checkpoint/sharded.h"
#include "weft/comm/testing/over_tcp.h"
#include "weft/parallel/compose/testing/parity.h"

namespace weft::parallel {
namespace compose_codec_test {

using namespace internal;
using testing::HasSubstr;

constexpr Tiny kSingle{.type = at::kFloat};

Case coded(Case c, const std::string& codec) {
  c.plan.codec = codec;
  return c;
}

std::vector<Case> products() {
  const auto gathered = by(Algorithm::kOneForwardOneBackward, 2, 3, Weights::kPrivate);
  return {on({{"dp", 3}}), on({{"dp", 2}, {"fsdp", 2}}), on({{"dp", 2}, {"fsdp", 2}}, gathered),
          on({{"pp", 2}, {"dp", 2}}, by(Algorithm::kZeroBubbleH1, 3)),
          on({{"dp", 2}, {"tp", 2}}, by(Algorithm::kOneForwardOneBackward, 2))};
}

// Warm-up steps do not compress.
TEST(ComposeCodec, EqualsOneProcessDuringWarmUp) {
  const auto expected = by_torch<torch::optim::AdamW>(kSingle, adam());
  for (const Case& c : products())
    steps_of(coded(c, "int8:64,warmup=100"), kSingle, expected, 1e-5);
  const Tiny attending{.type = at::kFloat, .bodies = 2, .length = 7, .attends = true};
  const auto attended = by_torch<torch::optim::AdamW>(attending, adam());
  for (const Case& c : {on({{"cp", 2}}), on({{"dp", 2}, {"cp", 2}})})
    steps_of(coded(c, "int8:64,warmup=100"), attending, attended, 1e-5);
}

TEST(ComposeCodec, StaysNearOneProcessWithFineCodecs) {
  auto expected = by_torch<torch::optim::AdamW>(kSingle, adam());
  for (const Case& c : products()) {
    replicate(c.world(), [&](const Group& world) {
      ParallelModel model =
          parallelize(tiny_model(kSingle), trained_by(coded(c, "bf16")), Mesh(world, c.axes));
      for (std::size_t step = 0; step < kSteps; ++step) {
        EXPECT_NEAR(train(model, static_cast<int>(step)), expected.losses[step],
                    0.01 * expected.losses[step])
            << c.name();
        EXPECT_NEAR(model.grad_norm(), expected.norms[step], 0.02 * expected.norms[step])
            << c.name();
        EXPECT_NE(model.grad_norm(), expected.norms[step]) << c.name() << ": no value was rounded";
        model.step();
      }
    });
  }
}

// Steps [first, last), from the newest checkpoint in `dir`, and saves another one.
void go(const Case& c, int first, int last, const std::string& dir, bool over_tcp = false) {
  const auto rank = [&](const Group& world) {
    ParallelModel model = parallelize(tiny_model(kSingle), trained_by(c), Mesh(world, c.axes));
    if (first > 0) {
      const checkpoint::Reader saved(*checkpoint::latest(dir, world).folder);
      model.load_shards(saved);
      EXPECT_TRUE(model.load_codec(saved)) << c.name();
    }
    for (int step = first; step < last; ++step) {
      train(model, step);
      model.step();
    }
    checkpoint::save(dir, {.step = last, .parts = model.shards(), .state = {}}, world);
  };
  over_tcp ? comm::replicate_over_tcp(c.world(), rank) : replicate(c.world(), rank);
}

std::string folder_of(const TempDir& dir, int step) {
  return dir / ("step-0000000" + std::to_string(step));
}

// Parameters that are equal on ranks of tp or on two stages are not compressed: encoded with
// different neighbors, their copies would diverge.
TEST(ComposeCodec, KeepsEqualParametersEqual) {
  for (const auto& axes : {std::vector<Axis>{{"dp", 2}, {"tp", 2}}, {{"dp", 2}, {"pp", 2}}}) {
    replicate(4, [&](const Group& world) {
      const Mesh mesh(world, axes);
      Case c = on(axes, {.codec = "topk:0.05"});
      c.plan.zero_stage = 1;
      std::vector<std::shared_ptr<torch::nn::Module>> mine;
      BlockModel model = tiny_model(kSingle);
      for (auto& block : model.blocks) {
        block.make = [&mine, make = block.make](const Contexts& with) {
          const Block made = make(with);
          mine.push_back(made.module);
          return made;
        };
      }
      ParallelModel trained = parallelize(model, trained_by(c), mesh);
      for (int step = 0; step < 3; ++step) {
        train(trained, step);
        trained.step();
      }
      // Ranks 0 and 1 differ along the inner axis only.
      at::Tensor alike = axes[1].name == "tp"
                             ? mine[1]->named_parameters()["norm.weight"]
                             : (mesh.coordinate("pp") == 0 ? mine.front() : mine.back())
                                   ->named_parameters()["tokens.weight"];
      at::Tensor first = alike.detach().clone();
      mesh[axes[1].name].broadcast(first);
      EXPECT_TRUE(at::equal(first, alike)) << axes[1].name;
    });
  }
}

void expect_same_bits_from_a_checkpoint(const Case& c, bool over_tcp = false) {
  const TempDir whole, cut;
  go(c, 0, 5, whole.path(), over_tcp);
  go(c, 0, 2, cut.path(), over_tcp);
  go(c, 2, 5, cut.path(), over_tcp);
  const auto expected = checkpoint::load(folder_of(whole, 5)).parts,
             resumed = checkpoint::load(folder_of(cut, 5)).parts;
  for (const char* part : {"model", "optimizer", "codec"}) {
    ASSERT_TRUE(expected.contains(part) && !expected.at(part).empty()) << c.name() << ", " << part;
    expect_same_bits(expected.at(part), resumed.at(part), c.name() + ", " + part);
  }
}

TEST(ComposeCodec, ContinuesFromACheckpointWithTheSameBits) {
  for (const Case& product : products()) {
    expect_same_bits_from_a_checkpoint(
        coded(product, product.world() == 3 ? "int4:8,warmup=1" : "topk:0.1"));
  }
}

// On several hosts, where replicas of a single stage are not divided into shards.
TEST(ComposeCodec, ContinuesWithTheMemoryOfAllStagesOfARank) {
  expect_same_bits_from_a_checkpoint(
      coded(on({{"dp", 2}}, by(Algorithm::kInterleaved, 2)), "topk:0.1"), /*over_tcp=*/true);
}

TEST(ComposeCodec, StartsWithoutTheMemoryOfAnotherMeshOrCodec) {
  const Case c = coded(on({{"pp", 2}, {"dp", 2}}), "topk:0.1");
  const TempDir with, without;
  go(c, 0, 1, with.path());
  go(on(c.axes), 0, 1, without.path());
  for (const Case& other :
       {coded(c, "topk:0.2"), coded(on({{"dp", 2}, {"pp", 2}}), "topk:0.1"),
        coded(on({{"dp", 4}}), "topk:0.1"), coded(on({{"dp", 2}}), "topk:0.1")}) {
    replicate(other.world(), [&](const Group& world) {
      ParallelModel model =
          parallelize(tiny_model(kSingle), trained_by(other), Mesh(world, other.axes));
      EXPECT_FALSE(model.load_codec(checkpoint::Reader(folder_of(with, 1)))) << other.name();
      EXPECT_FALSE(model.load_codec(checkpoint::Reader(folder_of(without, 1)))) << other.name();
    });
  }
}

TEST(ComposeCodec, ReportsTheCutsOfItsStateOnTheSameMeshOnly) {
  Case c = coded(on({{"pp", 2}, {"dp", 2}}), "topk:0.1");
  c.plan.cuts = {1};
  const TempDir with, without;
  go(c, 0, 1, with.path());
  go(on(c.axes), 0, 1, without.path());
  replicate(4, [&](const Group& world) {
    const checkpoint::Reader saved(folder_of(with, 1));
    EXPECT_EQ(ParallelModel::cuts_of(Mesh(world, c.axes), saved), std::vector<int>{1});
    EXPECT_TRUE(ParallelModel::cuts_of(Mesh(world, {{"dp", 2}, {"pp", 2}}), saved).empty());
    EXPECT_TRUE(
        ParallelModel::cuts_of(Mesh(world, c.axes), checkpoint::Reader(folder_of(without, 1)))
            .empty());
  });
}

TEST(ComposeCodec, DescribesTheCodecAndRejectsUnsupportedOnes) {
  const auto refused = [](Plan plan, std::vector<Axis> axes) {
    const plan::MeshLayout mesh(axes[0].size * (axes.size() > 1 ? axes[1].size : 1), axes);
    return refusal([&] { check_plan(plan, {.blocks = 4}, mesh); }, Errc::kBadConfig);
  };
  EXPECT_THAT(refused({.codec = "auto"}, {{"dp", 2}, {"pp", 2}}), HasSubstr("name a codec"));
  EXPECT_THAT(refused({.virtual_stages = 2, .codec = "auto"}, {{"dp", 2}}),
              HasSubstr("name a codec"));
  EXPECT_EQ(refused({.codec = "auto"}, {{"dp", 2}}), "accepted");
  EXPECT_THAT(refused({.codec = "in8"}, {{"dp", 2}}), HasSubstr("int8"));
  EXPECT_THAT(refused({.codec = "int8", .precision = Precision::kF16}, {{"dp", 2}}),
              HasSubstr("use bf16, or no codec"));
  EXPECT_THAT(refused({.codec = "int8"}, {{"fsdp", 2}}), HasSubstr("use dp on the slow links"));
  EXPECT_EQ(refused({.codec = "int8"}, {{"pp", 2}}), "accepted");
  replicate(2, [](const Group& world) {
    Plan plan{.optimizer = optimizer_spec(torch::optim::SGDOptions(0.1).momentum(0.9), {}),
              .codec = "sign:64"};
    const ParallelModel model = parallelize(tiny_model(kSingle), plan, Mesh(world, {{"dp", 2}}));
    EXPECT_THAT(
        model.describe(),
        HasSubstr(
            "averaged over dp=2, once a step, through sign:64, with momentum after the codec\n"));
  });
}

}  // namespace compose_codec_test
}  // namespace weft::parallel
