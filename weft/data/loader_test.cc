#include "weft/data/loader.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <latch>
#include <stdexcept>

#include "weft/base/error.h"
#include "weft/data/shapes.h"

namespace weft::data {
namespace {

using namespace std::chrono_literals;

Deadline soon() { return Deadline::in(20s); }

std::shared_ptr<const ImageSet> shapes() {
  static const auto set =
      std::make_shared<const ImageSet>(make_shapes({.train = 100}, Part::kTrain));
  return set;
}

Source plain() {
  return image_source(shapes(), Augment({.crop_padding = 2, .flip = true, .seed = 1}));
}
Sampler sampler(int rank = 0, int world = 1) {
  return Sampler({.size = 100, .batch = 16, .seed = 5, .rank = rank, .world = world});
}

TEST(Loader, GivesTheSameBatchesWithAndWithoutPrefetch) {
  Loader ahead(plain(), sampler(), 3), now(plain(), sampler(), 0);
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (std::int64_t b = 0; b < ahead.batches(); ++b) {
      const auto x = ahead.next(soon()), y = now.next(soon());
      ASSERT_TRUE(x && y);
      EXPECT_TRUE(at::equal(x->inputs[0], y->inputs[0]));
      EXPECT_TRUE(at::equal(x->targets[0], y->targets[0]));
      EXPECT_EQ(x->share.indices, y->share.indices);
      EXPECT_EQ(x->share.epoch, epoch);
      EXPECT_EQ(ahead.state(), now.state());
    }
    EXPECT_FALSE(ahead.next(soon()));
    EXPECT_FALSE(now.next(soon()));
    EXPECT_EQ(ahead.state(), (SamplerState{epoch + 1, 0}));
  }
}

TEST(Loader, GivesImagesAndTargetsOfTheSamplesInTheShare) {
  Loader loader(image_source(shapes(), Augment()), sampler(1, 3), 1);
  const auto batch = loader.next(soon());
  ASSERT_TRUE(batch);
  const auto n = static_cast<std::int64_t>(batch->share.indices.size());
  EXPECT_EQ(batch->inputs[0].sizes(), (std::vector<std::int64_t>{n, 1, 28, 28}));
  EXPECT_EQ(batch->inputs[0].scalar_type(), at::kFloat);
  for (std::int64_t i = 0; i < n; ++i) {
    const auto index = batch->share.indices[i];
    EXPECT_EQ(batch->targets[0].data_ptr<std::int64_t>()[i], shapes()->labels[index]);
    EXPECT_NEAR(batch->inputs[0].data_ptr<float>()[i * 784 + 400],
                shapes()->pixels[index * 784 + 400] / 255.f, 1e-6);
  }
}

TEST(Loader, ResumesExactlyDespitePrefetchedBatches) {
  Loader first(plain(), sampler(), 4);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(first.next(soon()));
  const SamplerState saved = first.state();
  EXPECT_EQ(saved, (SamplerState{0, 48}));
  Loader second(plain(), sampler(), 4);
  ASSERT_TRUE(second.next(soon()));  // restore() also works after next().
  second.restore(saved);
  EXPECT_EQ(second.state(), saved);
  while (auto want = first.next(soon())) {
    const auto got = second.next(soon());
    ASSERT_TRUE(got);
    EXPECT_EQ(got->share.indices, want->share.indices);
    EXPECT_TRUE(at::equal(got->inputs[0], want->inputs[0]));
  }
  EXPECT_FALSE(second.next(soon()));
}

TEST(Loader, GoesOnFromItsStateAfterARefusedOne) {
  for (const int prefetch : {0, 3}) {
    Loader loader(plain(), sampler(), prefetch);
    ASSERT_TRUE(loader.next(soon()));
    EXPECT_THROW(loader.restore({0, 101}), Error);
    EXPECT_EQ(loader.state(), (SamplerState{0, 16}));
    const auto batch = loader.next(soon());
    ASSERT_TRUE(batch);
    EXPECT_EQ(batch->share.first, 16);
  }
}

TEST(Loader, SplitsLaterBatchesByWeightsAndLosesNoSample) {
  std::vector<std::unique_ptr<Loader>> loaders;
  for (int rank = 0; rank < 2; ++rank)
    loaders.push_back(std::make_unique<Loader>(plain(), sampler(rank, 2), 3));
  std::vector<int> seen(100, 0);
  for (std::int64_t b = 0; b < loaders[0]->batches(); ++b) {
    if (b == 2) {
      for (const auto& loader : loaders) loader->set_weights({3, 1});
    }
    for (std::size_t rank = 0; rank < 2; ++rank) {
      const auto batch = loaders[rank]->next(soon());
      ASSERT_TRUE(batch);
      if (b >= 2 && b < 6) {
        EXPECT_EQ(batch->inputs[0].size(0), rank == 0 ? 12 : 4);
      }
      for (const auto index : batch->share.indices) ++seen[static_cast<std::size_t>(index)];
    }
  }
  EXPECT_EQ(seen, std::vector<int>(100, 1));
  for (const auto& loader : loaders) {
    EXPECT_FALSE(loader->next(soon()));
    EXPECT_THROW(loader->set_weights({1, 2, 3}), Error);
  }
}

TEST(Loader, ThrowsTheSourcesExceptionAfterTheBatchesBeforeIt) {
  for (const int prefetch : {0, 2}) {
    int calls = 0;
    const auto make = [&](const Share&) {
      if (++calls == 3) throw std::runtime_error("disk on fire");
      return Batch{};
    };
    Loader loader({100, make}, sampler(), prefetch);
    EXPECT_TRUE(loader.next(soon()));
    EXPECT_TRUE(loader.next(soon()));
    for (int again = 0; again < 2; ++again) {
      try {
        loader.next(soon());
        FAIL() << "no exception with prefetch " << prefetch;
      } catch (const std::runtime_error& error) {
        EXPECT_STREQ(error.what(), "disk on fire");
      }
    }
    EXPECT_EQ(loader.state(), (SamplerState{0, 32}));
    loader.restore({0, 32});
    EXPECT_TRUE(loader.next(soon()));
  }
}

// The batches of an epoch from a source that draws in several ways. `between` is called between
// them, while others are made ahead.
std::vector<at::Tensor> drawn(int prefetch, SamplerState from,
                              const std::function<void()>& between) {
  const auto make = [](const Share& share) {
    const auto count = static_cast<std::int64_t>(share.indices.size());
    const at::Tensor some = at::rand({count, 3}), more = at::randperm(40).to(at::kFloat),
                     mask = at::dropout(at::ones({count}), 0.5, true),
                     last = at::empty({count}).normal_();
    return Batch{{at::cat({some.flatten(), more, mask, last})}, {}, {}};
  };
  Loader loader({100, make}, sampler(), prefetch);
  loader.restore(from);
  std::vector<at::Tensor> all;
  while (auto batch = loader.next(soon())) {
    all.push_back(batch->inputs[0]);
    between();
  }
  return all;
}

TEST(Loader, DrawsNumbersOfASourceFromAGeneratorOfEachBatch) {
  const auto alone = drawn(0, {}, [] {});
  ASSERT_EQ(alone.size(), 7U);
  EXPECT_FALSE(at::equal(alone[0], alone[1]));
  for (const int prefetch : {0, 2}) {
    at::manual_seed(7);
    std::vector<at::Tensor> mine;  // of the model, meanwhile
    const auto batches = drawn(prefetch, {}, [&] { mine.push_back(at::rand({1, 50})); });
    for (std::size_t i = 0; i < alone.size(); ++i)
      EXPECT_TRUE(at::equal(batches[i], alone[i])) << "prefetch " << prefetch << ", batch " << i;
    at::manual_seed(7);
    for (const at::Tensor& one : mine) EXPECT_TRUE(at::equal(one, at::rand({1, 50})));
    const auto rest = drawn(prefetch, {0, 48}, [] {});
    ASSERT_EQ(rest.size(), 4U);
    EXPECT_TRUE(at::equal(rest[0], alone[3])) << "a resumed run";
  }
}

TEST(Loader, KeepsTheDeadlineAndLosesNoBatch) {
  std::latch go(1);
  const auto make = [&](const Share&) {
    go.wait();
    return Batch{};
  };
  Loader loader({100, make}, sampler(), 1);
  try {
    loader.next(Deadline::in(5ms));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kTimeout);
  }
  go.count_down();
  const auto batch = loader.next(soon());
  ASSERT_TRUE(batch);
  EXPECT_EQ(batch->share.first, 0);
}

TEST(Loader, StopsWithBatchesLeftAndBeforeItsFirstBatch) {
  { Loader never(plain(), sampler(), 2); }
  Loader loader(plain(), sampler(), 2);
  EXPECT_TRUE(loader.next(soon()));
}

TEST(Loader, ReusesMemoryOnlyWhenNoTensorHoldsIt) {
  Loader loader(plain(), sampler(), 0);
  auto batch = loader.next(soon());
  const void* memory = batch->inputs[0].data_ptr();
  const at::Tensor view = batch->inputs[0].select(0, 3);
  const at::Tensor copy = view.clone();
  batch.reset();
  batch = loader.next(soon());
  EXPECT_NE(batch->inputs[0].data_ptr(), memory) << "a view still looks at it";
  EXPECT_TRUE(at::equal(view, copy));
  memory = batch->inputs[0].data_ptr();
  batch.reset();
  EXPECT_EQ(loader.next(soon())->inputs[0].data_ptr(), memory);
}

TEST(Loader, GivesAnEmptyBatchToARankWithoutSamples) {
  Loader loader(plain(), Sampler({.size = 100, .batch = 2, .rank = 0, .world = 4}), 1);
  const auto batch = loader.next(soon());
  ASSERT_TRUE(batch);
  EXPECT_EQ(batch->inputs[0].size(0), 0);
  EXPECT_EQ(batch->share.global_size, 2);
}

}  // namespace
}  // namespace weft::data
