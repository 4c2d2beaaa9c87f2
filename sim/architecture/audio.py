"""Speech in and out: Tacotron 2, WaveGlow, RNN-T, wav2vec 2.0, Conformer.

Tacotron 2: Shen et al. 2018, arXiv:1712.05884; WaveGlow: Prenger et al. 2019, arXiv:1811.00002; both as in
NVIDIA's DeepLearningExamples. RNN-T: MLPerf Training v1.0 (after He et al. 2019). wav2vec 2.0: Baevski et al.
2020, arXiv:2006.11477. Conformer: Gulati et al. 2020, arXiv:2005.08100.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from sim.architecture.cnn import generator
from sim.architecture.common import Generator
from sim.architecture.images import Image, Trace
from sim.architecture.recurrent import lstm
from sim.architecture.transformer import Parts, TransformerShape
from sim.spec.base import Spec
from sim.spec.layer import Attention, Gemm, Layer, MemoryBound, Op


class TacotronShape(Spec):
    """Fields of Tacotron 2; the lengths are those of LJSpeech, padded to the longest of a batch."""

    symbols: int = Field(148, ge=2, description="characters of the text")
    text_length: int = Field(160, ge=1, description="characters of a sample, padding included")
    frames: int = Field(830, ge=1, description="spectrogram frames of a sample, padding included")
    mels: int = Field(80, ge=1, description="mel features of a frame")
    fused_norm: bool = Field(False, description="norm and activation in one kernel")


class WaveglowShape(Spec):
    """Fields of WaveGlow."""

    segment: int = Field(8000, ge=256, description="audio samples of a training segment")
    channels: int = Field(512, ge=1, description="channels of the networks inside the couplings")
    flows: int = Field(12, ge=1, description="steps of flow")
    layers: int = Field(8, ge=1, description="layers of each network")
    mels: int = Field(80, ge=1, description="mel features of a frame")


class TransducerShape(Spec):
    """Fields of RNN-T; the lengths are those of LibriSpeech."""

    frames: int = Field(410, ge=3, description="spectrogram frames of a sample after splicing three by three")
    features: int = Field(240, ge=1, description="features of a spliced frame")
    labels: int = Field(60, ge=1, description="word pieces of a transcript")
    vocabulary: int = Field(1024, ge=2, description="word pieces that are told apart")
    hidden: int = Field(1024, ge=1, description="cells of a layer of the encoder")
    predictor: int = Field(512, ge=1, description="cells of the prediction network and of the joint network")


class WaveformShape(Spec):
    """Fields of wav2vec 2.0."""

    num_layers: int = Field(12, ge=1, le=10_000, description="transformer blocks")
    hidden: int = Field(768, ge=1, description="model width")
    num_heads: int = Field(12, ge=1, description="attention heads of every block")
    samples: int = Field(250_000, ge=400, description="audio samples of a training sample, 16 kHz")
    flash: bool = Field(False, description="fused attention that never writes the score matrix")
    fused_kernels: bool = Field(True, description="element-wise kernels fused; else separate")


class ConformerShape(Spec):
    """Fields of a Conformer with a CTC head."""

    num_layers: int = Field(18, ge=1, le=10_000, description="blocks")
    hidden: int = Field(512, ge=1, description="model width")
    num_heads: int = Field(8, ge=1, description="attention heads of every block")
    frames: int = Field(1600, ge=4, description="spectrogram frames of a sample, 10 ms each")
    mels: int = Field(80, ge=4, description="mel features of a frame")
    kernel: int = Field(31, ge=1, description="width of the depthwise convolution")
    vocabulary: int = Field(129, ge=2, description="symbols that are told apart")
    flash: bool = Field(False, description="fused attention that never writes the score matrix")


def _step(kind: str, products: tuple[tuple[int, int], ...], elements: float, count: int) -> tuple[Op, ...]:
    """One step of a loop of separate kernels, ``count`` times: products (n, k) and passes."""
    ops: tuple[Op, ...] = tuple(Gemm(rows=1, n=n, k=k) for n, k in products)
    return (*ops, MemoryBound(elements=elements, launches=8)) * count


def tacotron(shape: TacotronShape) -> tuple[Layer, ...]:
    """Encoder of convolutions and an LSTM, a decoder that loops over frames, convolutions after it."""
    net = Trace(shape.fused_norm, channels_last=False)
    text, frames, mels = shape.text_length, shape.frames, shape.mels
    table = float(shape.symbols * 512)
    signal = Image(512, 1, text)
    net.record("embedding", (MemoryBound(elements=2.0 * 512 * text),), (table,), signal, signal, 0.0)
    for _ in range(3):
        signal = net.convolution(signal, 512, (1, 5), 1, (0, 2), bias=True)
    encoder = lstm("encoder", net.block, text, 512, 256, directions=2)
    net.next_block()
    spectrum = Image(mels, 1, frames)
    # Attention: query, location convolution (2 x 32, 31 wide) and projection, energies, weighted sum.
    attended = (
        Gemm(rows=text, n=128, k=512),
        *_step(
            "attention",
            ((4096, 768 + 1024), (128, 1024), (text * 128, 32), (text * 32, 62), (text, 128), (512, text),
             (4096, 1536 + 1024)),
            7.0 * 4096 + 6.0 * text * 128, frames,
        ),
    )  # fmt: skip
    weights = (256.0 * mels, 256.0 * 256, 4096.0 * (768 + 1024) + 2 * 4096, 4096.0 * (1536 + 1024) + 2 * 4096)
    attention = (128.0 * 1024, 128.0 * 512, 2.0 * 32 * 31, 128.0 * 32, 128.0)
    out = ((mels + 1) * 1536.0, mels + 1.0)
    prenet: tuple[Op, ...] = (Gemm(rows=frames, n=256, k=mels), Gemm(rows=frames, n=256, k=256))
    projected: tuple[Op, ...] = (Gemm(rows=frames, n=mels + 1, k=1536),)
    stored = float(frames * (2 * 4096 + 4096 + 4 * text + 128 * text // 8))
    net.record(
        "decoder", (*prenet, *attended, *projected), (*weights, *attention, *out), spectrum, spectrum, stored
    )
    net.next_block()
    for channels in (512, 512, 512, 512, mels):
        spectrum = net.convolution(spectrum, channels, (1, 5), 1, (0, 2), bias=True)
    layers = list(net.layers())
    layers.insert(4, encoder)
    return tuple(layers)


def waveglow(shape: WaveglowShape) -> tuple[Layer, ...]:
    """Steps of flow: an invertible 1 x 1 convolution and a coupling whose network sees the spectrogram."""
    net = Trace(channels_last=False)
    length, width = shape.segment // 8, shape.channels
    frames = Image(shape.mels, 1, -(-shape.segment // 256))
    taps = 1024  # transposed convolution, one product per frame
    net.record(
        "conv", (Gemm(rows=frames.width, n=shape.mels * taps, k=shape.mels),),
        (float(shape.mels**2 * taps), float(shape.mels)), frames, Image(8 * shape.mels, 1, length),
        float(8 * shape.mels * length),
    )  # fmt: skip
    condition, remaining = Image(8 * shape.mels, 1, length), 8
    for flow in range(shape.flows):
        if flow and flow % 4 == 0:
            remaining -= 2
        audio = Image(remaining, 1, length)
        net.convolution(audio, remaining, 1, norm=False, relu=False)
        hidden = net.convolution(audio.like(remaining // 2), width, 1, bias=True, norm=False, relu=False)
        net.convolution(condition, 2 * width * shape.layers, 1, bias=True, norm=False, relu=False)
        for index in range(shape.layers):
            gates = net.convolution(hidden, 2 * width, (1, 3), 1, (0, 1), bias=True, norm=False)
            last = index == shape.layers - 1
            net.convolution(
                gates.like(width), width if last else 2 * width, 1, bias=True, norm=False, relu=False,
                residual=True,
            )  # fmt: skip
        net.convolution(hidden, remaining, 1, bias=True, norm=False, relu=False)
        net.next_block()
    return net.layers()


def transducer(shape: TransducerShape) -> tuple[Layer, ...]:
    """Encoder of two LSTMs and, at half the rate, three; prediction network; joint network on all pairs."""
    frames, hidden, small = shape.frames, shape.hidden, shape.predictor
    chain = [
        lstm("encoder0", 0, frames, shape.features, hidden),
        lstm("encoder1", 1, frames, hidden, hidden),
        *(lstm(f"encoder{i}", i, frames // 2, hidden if i > 2 else 2 * hidden, hidden) for i in (2, 3, 4)),
    ]
    labels, pairs = shape.labels + 1, (frames // 2) * (shape.labels + 1)
    table = float((shape.vocabulary - 1) * small)
    chain.append(
        Layer(
            name="labels", kind="embedding", block=5, parameters=table, tensors=(table,),
            ops=(MemoryBound(elements=2.0 * labels * small),), output_elements=float(labels * small),
        )
    )  # fmt: skip
    chain += [lstm(f"predictor{i}", 5, labels, small, small) for i in range(2)]
    tensors: tuple[float, ...] = (float(hidden * small), float(small), float(small**2), float(small))
    tensors += (float(small * shape.vocabulary), float(shape.vocabulary))
    logits = float(pairs * shape.vocabulary)
    chain.append(
        Layer(
            name="head", kind="head", block=5, parameters=sum(tensors), tensors=tensors,
            ops=(
                Gemm(rows=frames // 2, n=small, k=hidden), Gemm(rows=labels, n=small, k=small),
                MemoryBound(elements=4.0 * pairs * small), Gemm(rows=pairs, n=shape.vocabulary, k=small),
                MemoryBound(elements=3.0 * logits, backward_elements=3.0 * logits),
            ),
            input_elements=float(frames // 2 * hidden), output_elements=logits,
            stored_elements=float(pairs * small),
        )
    )  # fmt: skip
    return tuple(chain)


_FEATURES = ((10, 5), (3, 2), (3, 2), (3, 2), (3, 2), (2, 2), (2, 2))
"""(Kernel, stride) of wav2vec 2.0's seven convolutions of 512 channels."""


def waveform(shape: WaveformShape) -> tuple[Layer, ...]:
    """Convolutions over the samples, a convolution of positions, transformer blocks."""
    net = Trace(channels_last=False)
    signal = Image(1, 1, shape.samples)
    for index, (kernel, stride) in enumerate(_FEATURES):
        signal = net.convolution(signal, 512, (1, kernel), (1, stride), norm=index == 0)
    tokens, hidden = signal.width, shape.hidden
    net.norm(signal, relu=False)
    projected: tuple[Op, ...] = (Gemm(rows=tokens, n=hidden, k=512),)
    embedded = Image(hidden, 1, tokens)
    net.record("linear", projected, (512.0 * hidden, float(hidden)), signal, embedded, float(signal.elements))
    net.convolution(embedded, hidden, (1, 128), 1, (0, 64), groups=16, bias=True, norm=False)
    parts = Parts(
        TransformerShape(
            num_layers=shape.num_layers, hidden=hidden, num_heads=shape.num_heads, vocabulary=32,
            sequence_length=tokens, max_positions=tokens, causal=False, flash=shape.flash,
            fused_kernels=shape.fused_kernels,
        )
    )  # fmt: skip
    blocks = [
        layer.replace(block=block)
        for block in range(shape.num_layers)
        for layer in (parts.attention_layer(block), parts.mlp_layer(block))
    ]
    last = parts.norm_op
    out = Layer(
        name="head", kind="head", block=shape.num_layers - 1, ops=(last,), tensors=parts.shape.norm_tensors,
        parameters=sum(parts.shape.norm_tensors), input_elements=parts.activation,
        output_elements=parts.activation, stored_elements=parts.activation,
    )  # fmt: skip
    return (*net.layers(), *blocks, out)


def conformer(shape: ConformerShape) -> tuple[Layer, ...]:
    """Strided convolutions; blocks of half a feed-forward network, attention, convolution, the other half."""
    net = Trace(channels_last=False)
    hidden, wide = shape.hidden, 4 * shape.hidden
    signal = Image(1, shape.frames, shape.mels)
    for _ in range(2):
        signal = net.convolution(signal, hidden, 3, 2, 1, bias=True, norm=False)
    tokens = signal.height
    image = Image(hidden, 1, tokens)
    flat = float(hidden * signal.width)
    net.record(
        "linear", (Gemm(rows=tokens, n=hidden, k=flat),), (flat * hidden, float(hidden)), signal, image,
        float(signal.elements),
    )  # fmt: skip
    net.next_block()
    activation = float(tokens * hidden)
    norm = MemoryBound(elements=2 * activation, backward_elements=3 * activation)
    added = MemoryBound(elements=3 * activation, backward_elements=3 * activation)
    vector, square, product = float(hidden), float(hidden**2), float(hidden * wide)
    for _ in range(shape.num_layers):
        half: tuple[Op, ...] = (
            norm, Gemm(rows=tokens, n=wide, k=hidden),
            MemoryBound(elements=4.0 * tokens * wide, backward_elements=6.0 * tokens * wide),
            Gemm(rows=tokens, n=hidden, k=wide), added,
        )  # fmt: skip
        core = Attention(
            query_length=tokens, key_length=tokens, heads=shape.num_heads, kv_heads=shape.num_heads,
            head_dim=hidden // shape.num_heads, flash=shape.flash, dropout=True,
        )  # fmt: skip
        scores = float(shape.num_heads * tokens * 2 * tokens)
        relative: tuple[Op, ...] = (  # scores of relative positions, shifted and added
            Gemm(rows=2 * tokens, n=hidden, k=hidden), Gemm(rows=tokens, n=2 * tokens, k=hidden),
            MemoryBound(elements=2 * scores, backward_elements=2 * scores, launches=4),
        )  # fmt: skip
        attention: tuple[Op, ...] = (
            norm, Gemm(rows=tokens, n=3 * hidden, k=hidden), *relative, core,
            Gemm(rows=tokens, n=hidden, k=hidden), added,
        )  # fmt: skip
        feed = (vector, vector, product, float(wide), product, vector)
        net.record("mlp", half, feed, image, image, 2 * activation + 2.0 * tokens * wide)
        matrices = (vector, vector, 3 * square, 3 * vector, square, 2 * vector, square, vector)
        net.record("attention", attention, matrices, image, image, 6 * activation + 2.5 * scores)
        net.norm(image, relu=False)
        gated = net.convolution(image, 2 * hidden, 1, bias=True, norm=False)
        inner = net.convolution(
            gated.like(hidden), hidden, (1, shape.kernel), 1, (0, shape.kernel // 2), groups=hidden, bias=True
        )
        net.convolution(inner, hidden, 1, bias=True, norm=False, relu=False, residual=True)
        net.record("mlp", half, feed, image, image, 2 * activation + 2.0 * tokens * wide)
        net.norm(image, relu=False)
        net.next_block()
    net.convolution(image, shape.vocabulary, 1, bias=True, norm=False, relu=False, head=True)
    return net.layers()


GENERATORS: dict[str, Generator[Any]] = {
    "tacotron2": generator(TacotronShape, tacotron),
    "waveglow": generator(WaveglowShape, waveglow),
    "rnn-t": generator(TransducerShape, transducer),
    "wav2vec2": generator(WaveformShape, waveform),
    "conformer": generator(ConformerShape, conformer),
}
