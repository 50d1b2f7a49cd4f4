// A small GPT over 1, 2 and 4 ranks is compared to one process without a group. Tolerance of
// losses, gradients and weights, relative and absolute: 1e-10 in float64, 1e-5 in float32. It is
// also compared to the logits of Hugging Face's transformers (testdata/, written by
// gpt_reference.py) with a tolerance of 2e-5, as both compute in float32.
#include "weft/models/gpt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>
#include <unistd.h>

#include <filesystem>
#include <functional>

#include "weft/base/error.h"
#include "weft/comm/replicate.h"
#include "weft/comm/testing/tensors.h"
#include "weft/models/huggingface.h"
#include "weft/observe/trace.h"

namespace weft::models {
namespace gpt_test {

using comm::expect_close;
using parallel::Sequence;
using parallel::TensorParallel;
using testing::HasSubstr;

constexpr std::uint64_t kSeed = 3;

// Returns the whole tensor of which `mine` is this rank's slice: the parameter, or a tensor that is
// divided like it.
at::Tensor whole(const GptImpl& model, const std::string& name, const at::Tensor& mine) {
  const auto slices = parallel::slices(model);
  const auto slice = slices.find(name);
  return slice == slices.end() ? mine : parallel::whole_of(mine, slice->second, model.tp);
}

at::Tensor whole_logits(GptImpl& model, const at::Tensor& tokens,
                        const at::Tensor& documents = {}) {
  const at::Tensor mine = model.forward(tokens, documents).detach();
  return parallel::whole_of(mine, {2, model.options.vocabulary}, model.tp);
}

struct Trained {
  std::vector<double> losses;
  std::map<std::string, at::Tensor> first_gradients, weights;  // Whole, not this rank's slices.
};

struct Case {
  GptOptions options;
  at::ScalarType type = at::kDouble;
  bool adamw = false;
  at::Tensor documents;
};

at::Tensor tokens_of(const GptOptions& o, int step) {
  return (torch::arange(2 * 8).view({2, 8}) * 7 + step * 3) % o.vocabulary;
}

// Trains for five steps, each on another batch. Gradients are those of the first step.
Trained train(const Case& c, const TensorParallel& tp) {
  Gpt model(c.options, tp);
  model->to(c.type);
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  if (c.adamw) {
    // Adam divides by the root of the squared gradient. A large eps keeps gradients that are nearly
    // 0 from being scaled up to 1.
    optimizer = std::make_unique<torch::optim::AdamW>(
        model->parameters(), torch::optim::AdamWOptions(1e-2).weight_decay(0.1).eps(1e-4));
  } else {
    optimizer = std::make_unique<torch::optim::SGD>(model->parameters(),
                                                    torch::optim::SGDOptions(0.3).momentum(0.5));
  }
  Trained out;
  for (int step = 0; step < 5; ++step) {
    const at::Tensor tokens = tokens_of(c.options, step), targets = tokens_of(c.options, step + 1);
    optimizer->zero_grad();
    const at::Tensor loss = model->loss(model->forward(tokens, c.documents), targets);
    loss.backward();
    out.losses.push_back(loss.item<double>());
    if (step == 0) {
      for (const auto& p : model->named_parameters())
        out.first_gradients[p.key()] = whole(*model, p.key(), p.value().grad()).clone();
    }
    optimizer->step();
  }
  for (const auto& p : model->named_parameters())
    out.weights[p.key()] = whole(*model, p.key(), p.value().detach()).clone();
  return out;
}

void compare(const Case& c, std::initializer_list<int> worlds) {
  torch::manual_seed(kSeed);
  Trained one;
  {
    TensorParallel alone;
    alone.seed_dropout(kSeed);
    Case plain = c;
    plain.options.sequence = Sequence::kWhole;
    one = train(plain, alone);
  }
  EXPECT_NE(one.losses.front(), one.losses.back());
  for (const int ranks : worlds) {
    replicate(ranks, [&](Group group) {
      const Trained split = train(c, TensorParallel(std::move(group), kSeed));
      const double most = c.type == at::kDouble ? 1e-10 : 1e-5;
      for (std::size_t i = 0; i < 5; ++i)
        EXPECT_NEAR(split.losses[i], one.losses[i], most * one.losses[i]) << "step " << i;
      ASSERT_EQ(split.weights.size(), one.weights.size());
      for (const auto& [name, gradient] : one.first_gradients)
        expect_close(split.first_gradients.at(name), gradient, "gradient of " + name);
      for (const auto& [name, weight] : one.weights)
        expect_close(split.weights.at(name), weight, name);
    });
  }
}

GptOptions gpt2() {
  GptOptions o{
      .vocabulary = 13, .layers = 2, .width = 8, .heads = 4, .hidden = 16, .sequence_length = 8};
  o.initial_std = 0.3;
  return o;
}

GptOptions llama() {
  GptOptions o = like_llama(gpt2());
  o.kv_heads = 2;
  return o;
}

GptOptions with_split_sequence(GptOptions o) {
  o.sequence = Sequence::kSplit;
  return o;
}

TEST(Gpt, TrainsOverRanksAsOnOneProcessWithGpt2sOptions) {
  compare({.options = gpt2()}, {1, 2, 4});
  compare({.options = gpt2(), .type = at::kFloat}, {2});
  compare({.options = gpt2(), .adamw = true}, {4});
}

TEST(Gpt, TrainsOverRanksAsOnOneProcessWithTheSequenceSplit) {
  compare({.options = with_split_sequence(gpt2())}, {1, 2, 4});
  compare({.options = with_split_sequence(llama()), .adamw = true}, {2, 4});
}

TEST(Gpt, TrainsOverRanksAsOnOneProcessWithLlamasOptionsTiedAndUntied) {
  GptOptions chunked = llama();
  chunked.chunks = 3;
  compare({.options = chunked}, {2, 4});
  GptOptions tied = llama();
  tied.tied = true;
  compare({.options = tied, .type = at::kFloat}, {4});
}

TEST(Gpt, ExchangesAnActivationForEachHalfOfABlockAndForEmbeddingOrHead) {
  replicate(2, [](Group group) {
    observe::Trace trace;
    const observe::Trace::Use here(&trace, "rank");
    trace.record(true);
    const auto count = [&](std::int64_t bytes) {
      std::int64_t calls = 0;
      for (const observe::Span& span : trace.take().spans)
        calls +=
            span.category == "comm" && span.name.ends_with("all_reduce") && span.bytes == bytes;
      return calls;
    };
    Gpt model(gpt2(), TensorParallel(std::move(group), kSeed));
    const std::int64_t activation = 2 * 8 * 8 * 4, layers = 2;
    const at::Tensor logits = model->forward(tokens_of(model->options, 0));
    EXPECT_EQ(count(activation), 1 + 2 * layers);
    const at::Tensor loss = model->loss(logits, tokens_of(model->options, 1));
    EXPECT_EQ(count(2 * 2 * 8 * 4), 1) << "two numbers a token";
    loss.backward();
    EXPECT_EQ(count(activation), 1 + 2 * layers);
  });
}

TEST(Gpt, DropsTheSameOverRanksAsOnOneProcess) {
  GptOptions dropping = gpt2();
  dropping.dropout = 0.2;
  compare({.options = dropping}, {2});
  compare({.options = with_split_sequence(dropping)}, {4});
}

TEST(Gpt, KeepsPackedDocumentsApart) {
  const at::Tensor documents = torch::tensor({{0, 0, 0, 1, 1, 1, 1, 1}, {2, 2, 2, 2, 2, 2, 5, 5}});
  compare({.options = with_split_sequence(gpt2()), .documents = documents}, {2});
  for (const GptOptions& options : {gpt2(), llama()}) {
    Gpt model(options, TensorParallel());
    model->to(at::kDouble);
    const at::Tensor tokens = tokens_of(options, 0),
                     packed = whole_logits(*model, tokens, documents);
    expect_close(packed.narrow(1, 3, 5)[0],
                 whole_logits(*model, tokens.narrow(0, 0, 1).narrow(1, 3, 5))[0],
                 "a document alone");
    expect_close(packed.narrow(1, 6, 2)[1],
                 whole_logits(*model, tokens.narrow(0, 1, 1).narrow(1, 6, 2))[0],
                 "the last document alone");
    EXPECT_FALSE(torch::allclose(packed[0], whole_logits(*model, tokens)[0]))
        << "documents make no difference";
  }
}

TEST(Gpt, IsAListOfPartsThatTiesItsHeadToTheEmbedding) {
  Gpt model(gpt2(), TensorParallel());
  ASSERT_EQ(model->parts().size(), 4u);
  const at::Tensor tokens = tokens_of(model->options, 0);
  at::Tensor x = tokens;
  for (const auto& part : model->parts()) x = part->forward(x);
  EXPECT_TRUE(torch::equal(x, model->forward(tokens)));
  EXPECT_FALSE(model->named_parameters().contains("head.output.weight"));
  EXPECT_TRUE(Gpt(llama(), TensorParallel())->named_parameters().contains("head.output.weight"));
  // The same formula at the sizes of the smallest GPT-2 gives the 124,439,808 parameters of its
  // model card.
  std::int64_t count = 0;
  for (const at::Tensor& p : model->parameters()) count += p.numel();
  const std::int64_t w = 8, h = 16;
  EXPECT_EQ(count, 13 * w + 8 * w + 2 * (4 * w * w + 4 * w + 2 * w * h + w + h + 4 * w) + 2 * w);
}

TEST(Gpt, RefusesInvalidOptions) {
  const auto refusal = [](const GptOptions& options, int ranks) -> std::string {
    try {
      replicate(ranks, [&](Group group) {
        Gpt(options, TensorParallel(std::move(group), kSeed))->forward(tokens_of(options, 0));
      });
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Errc::kInvalidArgument);
      return error.what();
    }
    return "accepted";
  };
  GptOptions o = gpt2();
  o.heads = 2;
  EXPECT_THAT(refusal(o, 4),
              HasSubstr("Gpt: heads: 2 does not divide by 4 ranks; the nearest that does is 4"));
  o = gpt2();
  o.hidden = 18;
  EXPECT_THAT(
      refusal(o, 4),
      HasSubstr("Gpt: hidden: 18 does not divide by 4 ranks; the nearest that do are 16 and 20"));
  o = gpt2();
  o.sequence_length = 7;
  EXPECT_THAT(refusal(o, 1), HasSubstr("8 tokens, and positions for 7"));
  o = gpt2();
  o.layers = 0;
  EXPECT_THAT(refusal(o, 1), HasSubstr("at least 1"));
}

struct Reference {
  checkpoint::TensorMap weights;
  at::Tensor tokens, logits, loss;
};

Reference reference(const std::string& name) {
  const auto path = std::filesystem::path(WEFT_TESTDATA) / (name + ".safetensors");
  Reference r{checkpoint::load_safetensors(path.string()).tensors, {}, {}, {}};
  r.tokens = r.weights.extract("tokens").mapped();
  r.logits = r.weights.extract("logits").mapped();
  r.loss = r.weights.extract("loss").mapped();
  return r;
}

GptOptions options_of(const std::string& name) {
  GptOptions o{.vocabulary = 37, .layers = 2, .width = 16, .heads = 4, .sequence_length = 16};
  if (name == "gpt2") return o;
  o = like_llama(o);
  o.kv_heads = 2;
  o.hidden = 24;
  o.norm_eps = 1e-6;
  o.rope_theta = 500;
  return o;
}

TEST(GptHuggingFace, MatchesTransformersLogitsAndLossAndExportsItsWeights) {
  for (const std::string name : {"gpt2", "llama"}) {
    const Reference known = reference(name);
    for (const int ranks : {1, 2, 4}) {
      replicate(ranks, [&](Group group) {
        GptOptions options = options_of(name);
        if (ranks == 2) options.sequence = Sequence::kSplit;
        Gpt model(options, TensorParallel(std::move(group), kSeed));
        set_huggingface(*model, known.weights);
        EXPECT_TRUE(torch::allclose(whole_logits(*model, known.tokens), known.logits, 2e-5, 2e-5))
            << name;
        // transformers shifts the labels by one.
        const at::Tensor targets = torch::full_like(known.tokens, -100);
        targets.slice(1, 0, -1).copy_(known.tokens.slice(1, 1));
        EXPECT_NEAR(model->loss(model->forward(known.tokens), targets).item<double>(),
                    known.loss.item<double>(), 2e-5)
            << name;
        const checkpoint::TensorMap back = get_huggingface(*model);
        ASSERT_EQ(back.size(), known.weights.size());
        for (const auto& [key, tensor] : known.weights)
          EXPECT_TRUE(torch::equal(back.at(key), tensor)) << key;
      });
    }
  }
}

TEST(GptHuggingFace, ReadsEachRanksSlicesFromFiles) {
  const auto folder =
      std::filesystem::temp_directory_path() / ("weft_gpt_test_" + std::to_string(::getpid()));
  std::filesystem::create_directory(folder);
  const Reference known = reference("llama");
  checkpoint::TensorFile first, second;  // Two files, as of a large model.
  for (const auto& [key, tensor] : known.weights)
    (key.starts_with("model.layers.1") ? second : first).tensors[key] = tensor;
  const std::vector<std::string> paths{folder / "1.safetensors", folder / "2.safetensors"};
  checkpoint::save_safetensors(paths[0], first);
  checkpoint::save_safetensors(paths[1], second);
  for (const int ranks : {1, 4}) {
    replicate(ranks, [&](Group group) {
      Gpt model(options_of("llama"), TensorParallel(std::move(group), kSeed));
      load_huggingface(*model, paths);
      for (const auto& [key, tensor] : get_huggingface(*model))
        EXPECT_TRUE(torch::equal(known.weights.at(key), tensor)) << key;
      EXPECT_THROW(load_huggingface(*model, {paths[0], paths[0]}), Error);
      EXPECT_THROW(load_huggingface(*model, {paths[0]}), Error);
    });
  }
  std::filesystem::remove_all(folder);
}

TEST(GptHuggingFace, ReadsNamesWithoutTheOutermostModuleAndRefusesTensorsThatDoNotFit) {
  const Reference known = reference("gpt2");
  checkpoint::TensorMap shorter;
  for (const auto& [key, tensor] : known.weights) shorter[key.substr(key.find('.') + 1)] = tensor;
  shorter["h.0.attn.bias"] =
      torch::ones({1, 1, 16, 16});  // The causal mask, which OpenAI's files contain.
  Gpt model(options_of("gpt2"), TensorParallel());
  set_huggingface(*model, shorter);
  EXPECT_TRUE(torch::allclose(model->forward(known.tokens), known.logits, 2e-5, 2e-5));

  const auto refusal = [&](const std::function<void(checkpoint::TensorMap&)>& spoil,
                           const GptOptions& options) -> std::string {
    Gpt other(options, TensorParallel());
    const at::Tensor before = other->parameters()[0].detach().clone();
    checkpoint::TensorMap tensors = known.weights;
    spoil(tensors);
    try {
      set_huggingface(*other, tensors);
    } catch (const Error& error) {
      EXPECT_TRUE(torch::equal(other->parameters()[0], before)) << "changed although refused";
      return error.what();
    }
    return "accepted";
  };
  const auto nothing = [](checkpoint::TensorMap&) {};
  EXPECT_THAT(refusal([](auto& t) { t.erase("transformer.h.1.ln_1.bias"); }, options_of("gpt2")),
              HasSubstr("\"transformer.h.1.ln_1.bias\" is missing"));
  EXPECT_THAT(refusal([](auto& t) { t["extra"] = torch::zeros({1}); }, options_of("gpt2")),
              HasSubstr("no place for \"extra\""));
  GptOptions options = options_of("gpt2");
  options.layers = 1;
  EXPECT_THAT(refusal(nothing, options), HasSubstr("no place for \"transformer.h.1"));
  options = options_of("gpt2");
  options.hidden = 32;
  EXPECT_THAT(refusal(nothing, options),
              HasSubstr("mlp.c_fc.weight\" is [16, 64], the model's options ask for [16, 32]"));
  options = options_of("gpt2");
  options.norm = Norm::kRmsNorm;
  EXPECT_THAT(refusal(nothing, options), HasSubstr("neither GPT-2's"));
}

}  // namespace gpt_test
}  // namespace weft::models
