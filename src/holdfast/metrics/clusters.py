"""NMI: how well the clusters of the embeddings agree with the classes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def cluster(vectors: NDArray[np.float32], clusters: int, seed: int = 0) -> NDArray[np.int64]:
    """The k-means cluster of each vector, for as many clusters as there are classes."""
    import faiss

    clusters = min(clusters, len(vectors))
    vectors = np.ascontiguousarray(vectors, dtype=np.float32)
    # FAISS subsamples and warns by default; every vector is used here, in small sets too.
    means = faiss.Kmeans(
        vectors.shape[1],
        clusters,
        niter=25,
        nredo=3,
        seed=seed,
        min_points_per_centroid=1,
        max_points_per_centroid=len(vectors),
    )
    means.train(vectors)
    assigned: NDArray[np.int64] = means.index.search(vectors, 1)[1][:, 0]
    return assigned


def nmi(labels: NDArray[np.int64], assigned: NDArray[np.int64]) -> float:
    """Mutual information of classes and clusters over the mean of their entropies, in [0, 1]."""
    from sklearn.metrics import normalized_mutual_info_score

    return float(normalized_mutual_info_score(labels, assigned))
